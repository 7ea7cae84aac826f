package sim

import (
	"maps"
	"slices"
)

// recordWork and waitWork are the work of nodes that record an event or wait for one. They run
// without the process's lock and take it for the event.
func (c *call) recordWork(h uint64) (*work, result) {
	e, good := object[*event](c.p, h)
	if !good {
		return nil, errInvalidHandle
	}
	p := c.p
	return &work{kind: nodeRecord, run: func(*cudaContext) result {
		o := doneOperation()
		p.mu.Lock()
		e.cap, e.last = nil, o
		p.mu.Unlock()
		return success
	}}, success
}

func (c *call) waitWork(h uint64) (*work, result) {
	e, good := object[*event](c.p, h)
	if !good {
		return nil, errInvalidHandle
	}
	p := c.p
	return &work{kind: nodeWait, run: func(*cudaContext) result {
		p.mu.Lock()
		o := e.last
		p.mu.Unlock()
		if o != nil {
			select {
			case <-o.done:
			case <-p.dead:
			}
		}
		return success
	}}, success
}

// anyNode is cuGraphAddNode with the count as argument n and the parameters as
// argument n+1: an int of the type, and at 16 what belongs to the type.
func (c *call) anyNode(n int) result {
	kind, at := nodeKind(c.get32(c.arg(n+1))), c.arg(n+1)+16
	if c.bad {
		return errInvalidValue
	}
	var w *work
	r := errNotSupported
	switch kind {
	case nodeKernel:
		w, r = c.kernelWork(c.kernelParams(at, !c.entry.runtime))
	case nodeMemcpy: // flags and, from 16 on, the copy
		if c.entry.runtime {
			k, _, r2 := c.copy3D(at + 16)
			w, r = c.copyWork(k, r2)
		} else {
			w, r = c.copyWork(c.memcpy3D(at + 16))
		}
	case nodeMemset:
		w, r = c.fillWork(c.fillParams(at))
	case nodeHost:
		w, r = c.hostParams(at)
	case nodeGraph:
		w, r = c.childWork(c.get64(at))
	case nodeEmpty:
		w, r = emptyWork(), success
	case nodeWait:
		w, r = c.waitWork(c.get64(at))
	case nodeRecord:
		w, r = c.recordWork(c.get64(at))
	}
	return c.newNodeAt(w, r, n)
}

// listEdges is (graph, from*, to*, [edges*,] n*) with n as argument i.
func (c *call) listEdges(i int) result {
	g, good := object[*graph](c.p, c.arg(0))
	if !good {
		return errInvalidValue
	}
	var from, to []*node
	for _, n := range g.nodes {
		for _, d := range n.deps {
			from, to = append(from, d), append(to, n)
		}
	}
	count := c.get64(c.arg(i))
	if c.arg(1) == 0 || c.arg(2) == 0 {
		return c.putNodes(from, 0, c.arg(i))
	}
	room := min(count, uint64(len(from)))
	for k := range room {
		c.put64(c.arg(1)+8*k, from[k].handle)
		c.put64(c.arg(2)+8*k, to[k].handle)
	}
	c.put64(c.arg(i), room)
	return success
}

// dependents gives the nodes that depend on a node, with the count as argument i.
func (c *call) dependents(i int) result {
	n, good := object[*node](c.p, c.arg(0))
	if !good {
		return errInvalidValue
	}
	var out []*node
	for _, o := range n.g.nodes {
		if slices.Contains(o.deps, n) {
			out = append(out, o)
		}
	}
	return c.putNodes(out, c.arg(1), c.arg(i))
}

// setNode replaces the work of a node, which must stay of its kind; setExec that in
// an executable graph: (exec, node, …).
func (c *call) setNode(w *work, r result) result {
	n, good := object[*node](c.p, c.arg(0))
	if r != success {
		return r
	}
	if !good || n.w.kind != w.kind {
		return errInvalidValue
	}
	n.w = w
	return success
}

func (c *call) setExec(w *work, r result) result {
	e, good := object[*graphExec](c.p, c.arg(0))
	n, good2 := object[*node](c.p, c.arg(1))
	if r != success {
		return r
	}
	if !good || !good2 || e.byNode[n] == nil || e.byNode[n].w.kind != w.kind {
		return errInvalidValue
	}
	e.byNode[n].w = w
	return success
}

// graphNodeHandlers are those that driver and runtime share, by the name without
// the prefix.
func graphNodeHandlers() map[string]handler {
	return map[string]handler{
		"GraphAddEventRecordNode": func(c *call) result { return c.newNode(c.recordWork(c.arg(4))) },
		"GraphAddEventWaitNode":   func(c *call) result { return c.newNode(c.waitWork(c.arg(4))) },
		"GraphAddNode_v2":         func(c *call) result { return c.anyNode(4) },
		"GraphGetEdges_v2":        func(c *call) result { return c.listEdges(4) },
		"GraphNodeGetDependentNodes_v2": func(c *call) result {
			return c.dependents(3)
		},
		"GraphHostNodeSetParams":   func(c *call) result { return c.setNode(c.hostParams(c.arg(1))) },
		"GraphMemsetNodeSetParams": func(c *call) result { return c.setNode(c.fillWork(c.fillParams(c.arg(1)))) },
		"GraphExecHostNodeSetParams": func(c *call) result {
			return c.setExec(c.hostParams(c.arg(2)))
		},
		"GraphExecMemsetNodeSetParams": func(c *call) result {
			return c.setExec(c.fillWork(c.fillParams(c.arg(2))))
		},
		"GraphNodeGetEnabled": func(c *call) result {
			e, good := object[*graphExec](c.p, c.arg(0))
			n, good2 := object[*node](c.p, c.arg(1))
			if !good || !good2 || e.byNode[n] == nil {
				return errInvalidValue
			}
			c.put32(c.arg(2), uint32(bool32(!e.byNode[n].disable)))
			return success
		},
	}
}

// drvGraphNodes are functions about nodes of any type. CUDA 12 gave the edges of a graph data of their
// own, which is ignored; it is what moves the number of edges one parameter on.
func drvGraphNodes() map[string]handler {
	m := map[string]handler{
		"cuGraphAddNode":                  func(c *call) result { return c.anyNode(3) },
		"cuGraphAddNode_v3":               func(c *call) result { return c.anyNode(4) },
		"cuGraphGetEdges":                 func(c *call) result { return c.listEdges(3) },
		"cuGraphMemcpyNodeSetParams":      func(c *call) result { return c.setNode(c.copyWork(c.memcpy3D(c.arg(1)))) },
		"cuGraphExecMemcpyNodeSetParams":  func(c *call) result { return c.setExec(c.copyWork(c.memcpy3D(c.arg(2)))) },
		"cuGraphNodeGetDependentNodes_v2": func(c *call) result { return c.dependents(3) },
	}
	for name, h := range graphNodeHandlers() {
		m["cu"+name] = h
	}
	return m
}

// rtGraphNodes are the runtime's: in CUDA 13 the plain names have the arguments
// that the second versions had in 12.
func rtGraphNodes(lib int) map[string]handler {
	m := map[string]handler{}
	for name, h := range graphNodeHandlers() {
		m["cuda"+name] = h
		if base := name[:len(name)-min(len(name), 3)]; lib == libCudart13 && name == base+"_v2" {
			m["cuda"+base] = h
		}
	}
	if lib == libCudart12 {
		maps.Copy(m, map[string]handler{
			"cudaGraphAddNode":               func(c *call) result { return c.anyNode(3) },
			"cudaGraphGetEdges":              func(c *call) result { return c.listEdges(3) },
			"cudaGraphNodeGetDependentNodes": func(c *call) result { return c.dependents(2) },
		})
	}
	maps.Copy(m, map[string]handler{
		"cudaGraphMemcpyNodeSetParams": func(c *call) result {
			k, _, r := c.copy3D(c.arg(1))
			return c.setNode(c.copyWork(k, r))
		},
		"cudaGraphMemcpyNodeSetParams1D": func(c *call) result {
			return c.setNode(c.copyWork(plainCopy(c.arg(1), c.arg(2), c.arg(3)), success))
		},
		"cudaGraphExecMemcpyNodeSetParams": func(c *call) result {
			k, _, r := c.copy3D(c.arg(2))
			return c.setExec(c.copyWork(k, r))
		},
		"cudaGraphExecMemcpyNodeSetParams1D": func(c *call) result {
			return c.setExec(c.copyWork(plainCopy(c.arg(2), c.arg(3), c.arg(4)), success))
		},
	})
	return m
}
