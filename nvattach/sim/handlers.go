package sim

import "nvtrace/ptx"

// What handlers share: they take objects and names from the arguments, and the
// first that is not what it should be is their result.

// lookup returns the object of a handle and type.
func lookup[T any](c *call, h uint64) (T, result) {
	o, good := object[T](c.p, h)
	if !good {
		return o, errInvalidHandle
	}
	return o, success
}

// withObject makes a handler of what is done with the object whose handle is
// argument i.
func withObject[T any](i int, f func(c *call, o T) result) handler {
	return func(c *call) result {
		o, r := lookup[T](c, c.arg(i))
		if r != success {
			return r
		}
		return f(c, o)
	}
}

// withFunction makes a handler of what is done with the function that argument i
// names, in the current context if that is a kernel's handle.
func withFunction(i int, f func(c *call, fn *function) result) handler {
	return func(c *call) result {
		fn, r := c.resolve(c.arg(i))
		if r != success {
			return r
		}
		return f(c, fn)
	}
}

// withStream makes a handler of what is done with the stream of argument i.
func withStream(i int, f func(c *call, s *stream) result) handler {
	return func(c *call) result {
		s, r := c.stream(c.arg(i))
		if r != success {
			return r
		}
		return f(c, s)
	}
}

// nameArg returns the string of argument i.
func (c *call) nameArg(i int) (string, result) {
	s, good := c.cstring(c.arg(i))
	if !good {
		return "", errInvalidValue
	}
	return s, success
}

// fileArg reads the image in the file that argument i names.
func (c *call) fileArg(i int) ([]*ptx.File, result) {
	name, r := c.nameArg(i)
	if r != success {
		return nil, r
	}
	return c.imageFile(name)
}
