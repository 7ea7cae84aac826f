package session

import (
	"errors"
	"fmt"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/nvattach"
)

// Beside puts the programs into one kernel of an image that was loaded before, and returns an
// image with it that can be loaded beside that. The error says why the kernel can't be
// probed, which was noted, too.
func (c *Context) Beside(image []byte, kernel string, o *RewriteOptions) ([]byte, error) {
	wanted := *o
	wanted.Only = kernel
	r, err := c.s.opts.Plan.Rewrite(image, c.maps, &wanted)
	switch {
	case err != nil:
	case !r.Changed:
		err = errors.New("it got no programs")
		for _, u := range r.Unprobed {
			if u.Kernel == kernel {
				err = errors.New(u.Reason)
			}
		}
	default:
		if used := r.Variables(image, kernel, o.Arch); len(used) > 0 {
			err = fmt.Errorf("it uses variables of its module, of which a copy with programs would have others: %s", fewOf(used))
		}
	}
	if err != nil {
		c.s.Unprobed(kernel, err.Error())
		return nil, err
	}
	for i := range r.Kernels {
		if r.Kernels[i].Name == kernel {
			r.Kernels = r.Kernels[i : i+1]
			break
		}
	}
	r.Unprobed = nil
	c.s.note(r)
	return r.Image, nil
}

// fewOf names the first of some variables.
func fewOf(names []string) string {
	const most = 3
	var list []string
	for _, n := range names[:min(len(names), most)] {
		list = append(list, fatbin.Demangle(n))
	}
	text := strings.Join(list, ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Unprobed takes note of a kernel that programs want and do not get, and why.
func (s *Session) Unprobed(kernel, reason string) {
	s.note(&nvattach.Rewritten{Unprobed: []nvattach.Unprobed{{Kernel: kernel, Reason: reason}}})
}

// Missed takes note of n launches of a kernel that were made without programs, and why.
func (s *Session) Missed(kernel, reason string, n uint64) {
	if n == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kernel(kernel)
	k.Unprobed += int(n)
	k.UnprobedWhy = reason
}
