// Shows the sections that have all words that are typed; those that have them in their headings first.
(function () {
	const q = document.getElementById('q'), found = document.getElementById('found'), main = document.querySelector('main');
	const all = sections.map(s => ({ s, head: (s.t + ' ' + s.h).toLowerCase(), text: s.x.toLowerCase() }));
	function show() {
		const words = q.value.toLowerCase().split(/\s+/).filter(w => w);
		found.replaceChildren();
		main.hidden = words.length > 0;
		if (!words.length) return;
		const hits = [];
		for (const a of all) {
			let score = 0;
			for (const w of words) {
				const n = a.head.includes(w) ? 10 : a.text.includes(w) ? 1 : 0;
				if (!n) { score = 0; break; }
				score += n;
			}
			if (score) hits.push([score, a]);
		}
		hits.sort((a, b) => b[0] - a[0]);
		for (const [, a] of hits.slice(0, 30)) {
			const li = document.createElement('li'), link = document.createElement('a'), p = document.createElement('div');
			link.href = a.s.p + (a.s.a ? '#' + a.s.a : '');
			link.textContent = a.s.h && a.s.h !== a.s.t ? a.s.t + ': ' + a.s.h : a.s.t;
			link.onclick = () => { q.value = ''; show(); };
			const at = Math.max(0, a.text.indexOf(words[0]) - 60);
			p.textContent = (at ? '… ' : '') + a.s.x.slice(at, at + 160);
			li.append(link, p);
			found.append(li);
		}
		if (!hits.length) found.textContent = 'nothing has all of these words';
	}
	q.addEventListener('input', show);
	document.addEventListener('keydown', e => {
		if (e.key === '/' && document.activeElement !== q) { e.preventDefault(); q.focus(); }
		if (e.key === 'Escape') { q.value = ''; show(); }
	});
})();
