package session

import (
	"errors"
	"fmt"
	"strings"

	"nvtrace/fatbin"
	"nvtrace/nvattach"
	"nvtrace/nvattach/sidecar"
)

// A Copy is a kernel with programs, in an image that can be loaded beside that which it is from.
type Copy struct {
	// Variables are those of its module that it uses and that others can change.
	Variables []string

	of     *Context
	kernel string
	from   string
	arch   fatbin.Arch
	r      *nvattach.Rewritten
}

// Beside puts the programs into one kernel of an image that was loaded before. The error says
// why the kernel can't be probed, which was noted, too.
func (c *Context) Beside(image []byte, kernel string, o *RewriteOptions) (*Copy, error) {
	wanted := *o
	wanted.Only = kernel
	x := &Copy{of: c, kernel: kernel, arch: o.Arch}
	var err error
	x.r, err = c.s.opts.Plan.Rewrite(image, c.maps, &wanted)
	switch {
	case err != nil:
	case !x.r.Changed:
		err = errors.New("no program was put into the kernel")
		for _, u := range x.r.Unprobed {
			if u.Kernel == kernel {
				err = errors.New(u.Reason)
			}
		}
	default:
		var constant []string
		if x.Variables, constant = x.r.Variables(image, kernel, o.Arch); len(constant) > 0 {
			err = fmt.Errorf("the kernel reads constants of its module, of which a copy with programs would have others: %s", fewOf(constant))
		}
	}
	if err != nil {
		c.s.Unprobed(kernel, err.Error())
		return nil, err
	}
	return x, nil
}

// Image is what to load. The kernel uses the Variables of its module, at these addresses in
// global memory. The error says why the kernel can't be probed, which was noted, too.
func (x *Copy) Image(at map[string]uint64) (image []byte, err error) {
	image = x.r.Image
	if len(x.Variables) > 0 {
		if image, err = sidecar.Bind(image, x.kernel, x.arch, at); err != nil {
			x.of.s.Unprobed(x.kernel, fmt.Sprintf("its copy can't use the variables of its module (%s): %v", fewOf(x.Variables), err))
			return nil, err
		}
	}
	r := *x.r
	for i := range r.Kernels {
		if r.Kernels[i].Name == x.kernel {
			r.Kernels = r.Kernels[i : i+1]
			break
		}
	}
	r.Unprobed = nil
	x.of.s.note(&r, x.from)
	return image, nil
}

// ByKernel is that of [nvattach.Plan].
func (c *Context) ByKernel(image []byte, o *RewriteOptions) (alone func(kernel string) ([]byte, error), size int) {
	return c.s.opts.Plan.ByKernel(image, o)
}

// Alone puts the programs into a kernel that is alone in an image. from is that of [Context.Rewrite]. The
// error says why the kernel can't be probed, which was noted, too.
func (c *Context) Alone(image []byte, kernel, from string, o *RewriteOptions) ([]byte, error) {
	x, err := c.Beside(image, kernel, o)
	if err != nil {
		return nil, err
	}
	x.from = from
	return x.Image(nil)
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
	s.note(&nvattach.Rewritten{Unprobed: []nvattach.Unprobed{{Kernel: kernel, Reason: reason}}}, "")
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
