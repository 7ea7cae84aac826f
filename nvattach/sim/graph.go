package sim

import "slices"

const (
	nodeKernel nodeKind = 0
	nodeMemcpy nodeKind = 1
	nodeMemset nodeKind = 2
	nodeHost   nodeKind = 3
	nodeGraph  nodeKind = 4
	nodeEmpty  nodeKind = 5
	nodeWait   nodeKind = 6
	nodeRecord nodeKind = 7
	nodeAlloc  nodeKind = 10
	nodeFree   nodeKind = 11
)

// maxNodes bounds the nodes of a graph, which run as a goroutine each.
const maxNodes = 1 << 16

// addNode adds a node to a graph.
func (c *call) addNode(g *graph, w *work, deps []*node) (*node, result) {
	if len(g.nodes) >= maxNodes {
		return nil, errOutOfMemory
	}
	n := &node{g: g, w: w, deps: slices.Clone(deps)}
	if n.handle = c.p.add(n); n.handle == 0 {
		return nil, errOutOfMemory
	}
	g.nodes = append(g.nodes, n)
	return n, success
}

// newGraph makes an empty graph.
func (c *call) newGraph() (*graph, result) {
	g := &graph{}
	if g.handle = c.p.add(g); g.handle == 0 {
		return nil, errOutOfMemory
	}
	return g, success
}

// destroyGraph forgets a graph and its nodes. Those of a graphExec that was made of it stay.
func (c *call) destroyGraph(g *graph) {
	for _, n := range g.nodes {
		delete(c.p.objects, n.handle)
	}
	delete(c.p.objects, g.handle)
}

// clone copies the graph; nodes maps the old nodes to the new.
func (c *call) clone(g *graph) (*graph, map[*node]*node, result) {
	n, r := c.newGraph()
	if r != success {
		return nil, nil, r
	}
	m := map[*node]*node{}
	for _, o := range g.nodes {
		x, r := c.addNode(n, o.w, nil)
		if r != success {
			c.destroyGraph(n)
			return nil, nil, r
		}
		m[o] = x
	}
	for _, o := range g.nodes {
		for _, d := range o.deps {
			m[o].deps = append(m[o].deps, m[d])
		}
	}
	return n, m, success
}

// A graphExec is a CUgraphExec: a graph in an order in which it can be executed.
type graphExec struct {
	handle uint64
	order  []*execNode
	byNode map[*node]*execNode
}

// flatten orders the nodes so that each comes after what it depends on; false if
// they depend on one another in a circle.
func flatten(g *graph) (*graphExec, bool) {
	e := &graphExec{byNode: map[*node]*execNode{}}
	index := map[*node]int{}
	state := map[*node]int{}
	var visit func(n *node, depth int) bool
	visit = func(n *node, depth int) bool {
		switch state[n] {
		case 1:
			return false
		case 2:
			return true
		}
		state[n] = 1
		x := &execNode{w: n.w}
		for _, d := range n.deps {
			if !visit(d, depth+1) {
				return false
			}
			x.deps = append(x.deps, index[d])
		}
		state[n] = 2
		index[n] = len(e.order)
		e.order = append(e.order, x)
		e.byNode[n] = x
		return true
	}
	for _, n := range g.nodes {
		if !visit(n, 0) {
			return nil, false
		}
	}
	return e, true
}

// run executes the nodes, each as soon as those before it are done.
func (e *graphExec) run(x *cudaContext, nodes []execNode) result {
	done := make([]chan struct{}, len(nodes))
	for i := range done {
		done[i] = make(chan struct{})
	}
	for i := range nodes {
		n := &nodes[i]
		go func() {
			defer close(done[i])
			for _, d := range n.deps {
				<-done[d]
			}
			switch {
			case n.disable || x.status() != success:
			case n.w.kernel != nil:
				x.fail(n.w.kernel(x, n.id))
			case n.w.run != nil:
				x.fail(n.w.run(x))
			}
		}()
	}
	for i := range done {
		<-done[i]
	}
	return success
}

// launchGraph puts a graph into a stream.
func (c *call) launchGraph(e *graphExec, s *stream) result {
	nodes := make([]execNode, len(e.order)) // as it is now: parameters may be set later
	for i, n := range e.order {
		if n.id == 0 && n.w.kind == nodeKernel {
			n.id = s.ctx.dev.machine.NewID()
		}
		nodes[i] = execNode{w: n.w, deps: n.deps, disable: n.disable, id: n.id}
		if n.w.kind == nodeHost || n.w.kind == nodeGraph {
			c.needHelper()
		}
	}
	w := &work{kind: nodeGraph, nodes: nodes, run: func(x *cudaContext) result { return e.run(x, nodes) }}
	_, r := c.submit(s, w)
	return r
}

// add adds a node behind what the stream has had so far.
func (k *capture) add(s *stream, w *work) result {
	if k.invalid {
		return errCaptureInvalidated
	}
	n, r := (&call{p: k.c}).addNode(k.g, w, s.capLast)
	if r != success {
		return r
	}
	s.capLast = []*node{n}
	return success
}

// join makes a stream wait for nodes of the capture, and be part of it.
func (k *capture) join(s *stream, nodes []*node) result {
	switch {
	case k.invalid:
		return errCaptureInvalidated
	case s.cap == nil && s.isLegacy:
		return errCaptureImplicit
	case s.cap == nil:
		s.cap, s.capLast = k, nil
		k.streams = append(k.streams, s)
	case s.cap != k:
		return errCaptureMerge
	}
	for _, n := range nodes {
		if !slices.Contains(s.capLast, n) {
			s.capLast = append(s.capLast, n)
		}
	}
	return success
}

// capturing reports whether a blocking stream of the context is being captured,
// which what goes into the legacy stream would have to wait for.
func (p *Process) capturing(x *cudaContext) bool {
	for s := range x.streams {
		if s.cap != nil && !s.nonblocking {
			return true
		}
	}
	return false
}

// invalidate ends a capture by something that can't be captured.
func (c *call) invalidate(s *stream) result {
	s.cap.invalid = true
	return errCaptureUnsupported
}

// beginCapture starts a capture.
func (c *call) beginCapture(s *stream, mode uint32, g *graph, deps []*node) result {
	switch {
	case mode > 2:
		return errInvalidValue
	case s.isLegacy:
		return errCaptureUnsupported
	case s.cap != nil:
		return errIllegalState
	}
	if g == nil {
		var r result
		if g, r = c.newGraph(); r != success {
			return r
		}
	}
	s.cap = &capture{g: g, c: c.p, origin: s, id: c.p.sim.ids.Add(1), mode: mode, thread: c.th.id, streams: []*stream{s}}
	s.capLast = deps
	return success
}

// endCapture ends it and returns the graph.
func (c *call) endCapture(s *stream) (*graph, result) {
	k := s.cap
	switch {
	case k == nil:
		return nil, errIllegalState
	case k.origin != s:
		return nil, errCaptureUnmatched
	case k.mode != 2 && k.thread != c.th.id:
		return nil, errCaptureWrongThread
	}
	joined := map[*node]bool{}
	todo := slices.Clone(s.capLast)
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if !joined[n] {
			joined[n] = true
			todo = append(todo, n.deps...)
		}
	}
	r := success
	for _, t := range k.streams {
		for _, n := range t.capLast {
			if !joined[n] {
				r = errCaptureUnjoined
			}
		}
		t.cap, t.capLast = nil, nil
	}
	if k.invalid {
		r = errCaptureInvalidated
	}
	if r != success {
		c.destroyGraph(k.g)
		return nil, r
	}
	return k.g, success
}
