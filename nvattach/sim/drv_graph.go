package sim

import (
	"encoding/binary"
	"slices"

	"nvtrace/ptx/emu"
)

// nodes reads an array of node handles.
func (c *call) nodes(addr, n uint64) ([]*node, result) {
	if n > maxNodes || n != 0 && addr == 0 {
		return nil, errInvalidValue
	}
	var out []*node
	for _, h := range c.words(addr, int(n)) {
		x, good := object[*node](c.p, h)
		if !good {
			return nil, errInvalidValue
		}
		out = append(out, x)
	}
	return out, success
}

// putNodes gives node handles as CUDA does: *count is the room in the array, or
// with a null array gets the number.
func (c *call) putNodes(list []*node, array, count uint64) result {
	if count == 0 {
		return errInvalidValue
	}
	if array == 0 {
		c.put64(count, uint64(len(list)))
		return success
	}
	room := c.get64(count)
	for i := range room {
		var h uint64
		if i < uint64(len(list)) {
			h = list[i].handle
		} else if i >= maxNodes {
			break
		}
		if c.put64(array+8*i, h); c.bad {
			return errInvalidValue
		}
	}
	c.put64(count, min(room, uint64(len(list))))
	return success
}

// newNode is the common head of cuGraphAdd…Node(node*, graph, deps, n, …).
func (c *call) newNode(w *work, r result) result { return c.newNodeAt(w, r, 3) }

// newNodeAt is newNode with the number of dependencies as argument count.
func (c *call) newNodeAt(w *work, r result, count int) result {
	if r != success {
		return r
	}
	g, good := object[*graph](c.p, c.arg(1))
	if !good {
		return errInvalidValue
	}
	deps, r := c.nodes(c.arg(2), c.arg(count))
	if r != success {
		return r
	}
	for _, d := range deps {
		if d.g != g {
			return errInvalidValue
		}
	}
	n, r := c.addNode(g, w, deps)
	if r == success {
		c.put64(c.arg(0), n.handle)
	}
	return r
}

// kernelParams reads a CUDA_KERNEL_NODE_PARAMS or cudaKernelNodeParams: function
// at 0, u32[3] grid at 8, u32[3] block at 20, u32 shared at 32, parameters at 40, extra
// at 48; with kern of the driver's second version a CUkernel at 56.
func (c *call) kernelParams(addr uint64, kern bool) (*launch, result) {
	var b [72]byte
	n := 56
	if kern {
		n = 72
	}
	if !c.read(addr, b[:n]) {
		return nil, errInvalidValue
	}
	u := func(off int) uint32 { return binary.LittleEndian.Uint32(b[off:]) }
	h := leWord(b[:], 0)
	if h == 0 && kern {
		h = leWord(b[:], 56)
	}
	f, r := c.kernelHandle(h)
	if r != success {
		return nil, r
	}
	l := &launch{f: f, grid: emu.Dim3{X: u(8), Y: u(12), Z: u(16)}, block: emu.Dim3{X: u(20), Y: u(24), Z: u(28)}, shared: u(32)}
	if l.params, r = c.gather(f, leWord(b[:], 40), leWord(b[:], 48)); r != success {
		return nil, r
	}
	return l, c.checkInstead(l)
}

// kernelHandle resolves a kernel as the API of the call names it.
func (c *call) kernelHandle(h uint64) (*function, result) {
	if c.entry.runtime {
		return c.hostFunction(h)
	}
	return c.resolve(h)
}

// kernelWork is the work of a kernel node.
func (c *call) kernelWork(l *launch, r result) (*work, result) {
	if r != success {
		return nil, r
	}
	p := c.p
	w := &work{kind: nodeKernel, launch: l}
	w.kernel = func(x *cudaContext, id uint64) result { return p.execute(x, w.launch, id) }
	w.run = func(x *cudaContext) result { return w.kernel(x, 0) }
	return w, success
}

// copyWork and fillWork are those of copies and memsets.
func (c *call) copyWork(k *copy2, r result) (*work, result) {
	if r != success {
		return nil, r
	}
	if r := k.check(c.p.arena); r != success {
		return nil, r
	}
	p := c.p
	w := &work{kind: nodeMemcpy, copy: k}
	w.run = func(*cudaContext) result { return w.copy.run(p) }
	return w, success
}

// fillParams reads a CUDA_MEMSET_NODE_PARAMS or cudaMemsetParams: dst, pitch, u32
// value, u32 size of an element, width, height.
func (c *call) fillParams(addr uint64) (*fill, result) {
	var b [40]byte
	if !c.read(addr, b[:]) {
		return nil, errInvalidValue
	}
	f := &fill{dst: leWord(b[:], 0), pitch: leWord(b[:], 8), value: uint32(leWord(b[:], 16)), size: leWord(b[:], 16) >> 32, width: leWord(b[:], 24), height: leWord(b[:], 32)}
	if !f.valid() {
		return nil, errInvalidValue
	}
	return f, success
}

// fillWork is the work of a memset. Where it writes is looked up when it runs.
func (c *call) fillWork(f *fill, r result) (*work, result) {
	if r != success {
		return nil, r
	}
	p := c.p
	w := &work{kind: nodeMemset, fill: f}
	w.run = func(*cudaContext) result { return w.fill.run(p) }
	return w, success
}

// hostParams reads a CUDA_HOST_NODE_PARAMS: function, argument.
func (c *call) hostParams(addr uint64) (*work, result) {
	v := c.words(addr, 2)
	if c.bad || v[0] == 0 {
		return nil, errInvalidValue
	}
	return c.hostWork(v[0], v[1]), success
}

// childWork is the work of a node that is a graph. The node has a copy, so that what becomes of the
// graph later does not change it, and the order in which that is executed.
func (c *call) childWork(h uint64) (*work, result) {
	g, good := object[*graph](c.p, h)
	if !good {
		return nil, errInvalidValue
	}
	cp, _, r := c.clone(g)
	if r != success {
		return nil, r
	}
	e, acyclic := flatten(cp)
	if !acyclic {
		return nil, errInvalidValue
	}
	nodes := make([]execNode, len(e.order))
	for i, n := range e.order {
		nodes[i] = *n
	}
	return &work{kind: nodeGraph, child: cp, run: func(x *cudaContext) result { return e.run(x, nodes) }}, success
}

func emptyWork() *work { return &work{kind: nodeEmpty} }

// drvGraphs are functions that build and read graphs. Most nodes are added by functions of one form:
// (node, graph, dependencies, how many, parameters).
func drvGraphs() map[string]handler {
	withGraph := func(i int, f func(c *call, g *graph) result) handler {
		return func(c *call) result {
			g, good := object[*graph](c.p, c.arg(i))
			if !good {
				return errInvalidValue
			}
			return f(c, g)
		}
	}
	withNode := func(i int, f func(c *call, n *node) result) handler {
		return func(c *call) result {
			n, good := object[*node](c.p, c.arg(i))
			if !good {
				return errInvalidValue
			}
			return f(c, n)
		}
	}
	edges := func(add bool) handler {
		return withGraph(0, func(c *call, _ *graph) result {
			n := c.arg(3)
			if c.entry.name == "cuGraphAddDependencies_v2" || c.entry.name == "cuGraphRemoveDependencies_v2" || c.lib == libCudart13 {
				n = c.arg(4)
			}
			return c.edges(c.arg(1), c.arg(2), n, add)
		})
	}
	return map[string]handler{
		"cuGraphCreate": func(c *call) result {
			g, r := c.newGraph()
			if r == success {
				c.put64(c.arg(0), g.handle)
			}
			return r
		},
		"cuGraphDestroy": withGraph(0, func(c *call, g *graph) result {
			c.destroyGraph(g)
			return success
		}),
		"cuGraphClone": withGraph(1, func(c *call, g *graph) result {
			n, _, r := c.clone(g)
			if r == success {
				c.put64(c.arg(0), n.handle)
			}
			return r
		}),
		"cuGraphAddKernelNode":     func(c *call) result { return c.newNode(c.kernelWork(c.kernelParams(c.arg(4), false))) },
		"cuGraphAddKernelNode_v2":  func(c *call) result { return c.newNode(c.kernelWork(c.kernelParams(c.arg(4), true))) },
		"cuGraphAddMemcpyNode":     func(c *call) result { return c.newNode(c.copyWork(c.memcpy3D(c.arg(4)))) },
		"cuGraphAddMemsetNode":     func(c *call) result { return c.newNode(c.fillWork(c.fillParams(c.arg(4)))) },
		"cuGraphAddHostNode":       func(c *call) result { return c.newNode(c.hostParams(c.arg(4))) },
		"cuGraphAddChildGraphNode": func(c *call) result { return c.newNode(c.childWork(c.arg(4))) },
		"cuGraphAddEmptyNode":      func(c *call) result { return c.newNode(emptyWork(), success) },
		"cuGraphAddDependencies":   edges(true), "cuGraphAddDependencies_v2": edges(true),
		"cuGraphRemoveDependencies": edges(false), "cuGraphRemoveDependencies_v2": edges(false),
		"cuGraphGetNodes": withGraph(0, func(c *call, g *graph) result { return c.putNodes(g.nodes, c.arg(1), c.arg(2)) }),
		"cuGraphGetRootNodes": withGraph(0, func(c *call, g *graph) result {
			var roots []*node
			for _, n := range g.nodes {
				if len(n.deps) == 0 {
					roots = append(roots, n)
				}
			}
			return c.putNodes(roots, c.arg(1), c.arg(2))
		}),
		"cuGraphNodeGetType": withNode(0, func(c *call, n *node) result {
			c.put32(c.arg(1), uint32(n.w.kind))
			return success
		}),
		"cuGraphNodeGetDependencies": withNode(0, func(c *call, n *node) result { return c.putNodes(n.deps, c.arg(1), c.arg(2)) }),
		"cuGraphNodeGetDependentNodes": withNode(0, func(c *call, n *node) result {
			var out []*node
			for _, o := range n.g.nodes {
				if slices.Contains(o.deps, n) {
					out = append(out, o)
				}
			}
			return c.putNodes(out, c.arg(1), c.arg(2))
		}),
		"cuGraphDestroyNode": withNode(0, func(c *call, n *node) result {
			n.g.nodes = slices.DeleteFunc(n.g.nodes, func(o *node) bool { return o == n })
			for _, o := range n.g.nodes {
				o.deps = slices.DeleteFunc(o.deps, func(d *node) bool { return d == n })
			}
			delete(c.p.objects, n.handle)
			return success
		}),
		"cuGraphKernelNodeSetParams":    withNode(0, func(c *call, n *node) result { return c.setKernel(n.w, false, func(w *work) { n.w = w }) }),
		"cuGraphKernelNodeSetParams_v2": withNode(0, func(c *call, n *node) result { return c.setKernel(n.w, true, func(w *work) { n.w = w }) }),
		"cuGraphHostNodeGetParams": withNode(0, func(c *call, n *node) result {
			if n.w.kind != nodeHost {
				return errInvalidValue
			}
			c.put64(c.arg(1), n.w.host[0])
			c.put64(c.arg(1)+8, n.w.host[1])
			return success
		}),
	}
}

// setKernel replaces the work of a kernel node by what argument 1 points to.
func (c *call) setKernel(old *work, kern bool, set func(*work)) result {
	if old.kind != nodeKernel {
		return errInvalidValue
	}
	w, r := c.kernelWork(c.kernelParams(c.arg(1), kern))
	if r == success {
		set(w)
	}
	return r
}

// edges adds or removes n edges between the nodes of two arrays.
func (c *call) edges(from, to, n uint64, add bool) result {
	a, r := c.nodes(from, n)
	if r != success {
		return r
	}
	b, r := c.nodes(to, n)
	if r != success {
		return r
	}
	for i := range a {
		has := slices.Index(b[i].deps, a[i])
		switch {
		case a[i].g != b[i].g || a[i] == b[i] || add == (has >= 0):
			return errInvalidValue
		case add:
			b[i].deps = append(b[i].deps, a[i])
		default:
			b[i].deps = slices.Delete(b[i].deps, has, has+1)
		}
	}
	return success
}

// instantiate makes an executable graph.
func (c *call) instantiate(out, h uint64) result {
	g, good := object[*graph](c.p, h)
	if !good {
		return errInvalidValue
	}
	e, acyclic := flatten(g)
	if !acyclic {
		return errInvalidValue
	}
	if e.handle = c.p.add(e); e.handle == 0 {
		return errOutOfMemory
	}
	c.put64(out, e.handle)
	return success
}

// drvGraphExecs are functions about executable graphs, whose nodes are named by those of the graph that
// they were made of.
func drvGraphExecs() map[string]handler {
	instantiate := func(c *call) result { return c.instantiate(c.arg(0), c.arg(1)) }
	withExec := func(f func(c *call, e *graphExec) result) handler {
		return func(c *call) result {
			e, good := object[*graphExec](c.p, c.arg(0))
			if !good {
				return errInvalidValue
			}
			return f(c, e)
		}
	}
	setKernel := func(kern bool) handler {
		return withExec(func(c *call, e *graphExec) result {
			n, good := object[*node](c.p, c.arg(1))
			x := e.byNode[n]
			if !good || x == nil || x.w.kind != nodeKernel {
				return errInvalidValue
			}
			w, r := c.kernelWork(c.kernelParams(c.arg(2), kern))
			if r == success {
				x.w = w
			}
			return r
		})
	}
	return map[string]handler{
		"cuGraphInstantiate": instantiate, "cuGraphInstantiate_v2": instantiate, "cuGraphInstantiateWithFlags": instantiate,
		"cuGraphInstantiateWithParams": instantiate,
		"cuGraphLaunch": withExec(func(c *call, e *graphExec) result {
			s, r := c.stream(c.arg(1))
			if r != success {
				return r
			}
			return c.launchGraph(e, s)
		}),
		"cuGraphUpload": withExec(func(*call, *graphExec) result { return success }),
		"cuGraphExecDestroy": withExec(func(c *call, e *graphExec) result {
			delete(c.p.objects, e.handle)
			return success
		}),
		"cuGraphExecKernelNodeSetParams":    setKernel(false),
		"cuGraphExecKernelNodeSetParams_v2": setKernel(true),
		"cuGraphExecUpdate":                 withExec(func(c *call, e *graphExec) result { return c.execUpdate(e) }),
		"cuGraphExecUpdate_v2":              withExec(func(c *call, e *graphExec) result { return c.execUpdate(e) }),
		"cuGraphNodeSetEnabled": withExec(func(c *call, e *graphExec) result {
			n, good := object[*node](c.p, c.arg(1))
			if x := e.byNode[n]; good && x != nil {
				x.disable = c.u32(2) == 0
				return success
			}
			return errInvalidValue
		}),
	}
}

// execUpdate gives an executable graph the parameters of a graph of the same
// shape: (exec, graph, info), where info begins with a u32 of what went wrong. The graph's nodes may
// be other objects than those that it was made of; from then on they stand for its nodes, too.
func (c *call) execUpdate(e *graphExec) result {
	g, good := object[*graph](c.p, c.arg(1))
	if !good {
		return errInvalidValue
	}
	n, acyclic := flatten(g)
	same := acyclic && len(n.order) == len(e.order)
	for i := 0; same && i < len(n.order); i++ {
		same = n.order[i].w.kind == e.order[i].w.kind && slices.Equal(n.order[i].deps, e.order[i].deps)
	}
	if !same {
		c.maybe32(c.arg(2), 2) // topology changed
		return errGraphUpdate
	}
	for i, x := range n.order {
		e.order[i].w = x.w
	}
	for k, x := range n.byNode {
		e.byNode[k] = e.order[slices.Index(n.order, x)]
	}
	c.maybe32(c.arg(2), 0)
	return success
}
