package rm

// Escape is a request on nvidiactl or a GPU's node.
type Escape struct {
	Name     string     // NV_ESC_RM_CONTROL
	Nr       uint32     // _IOC_NR of the request
	Params   []*Struct  // accepted parameter structs, in ascending order of size; empty: none known
	Array    bool       // the argument is an array of Params[0], as long as the request's size says
	Scope    Scope      // which node the driver accepts it on
	Source   string     // file of the driver that handles it, "" if the open driver does not
	Embedded []Embedded // pointers in Params[i] are those with Embedded.In == Params[i]
}

// Layout returns the parameter struct for an argument of size bytes: the one of
// that size, or, for an array, its element. Nil if none fits.
func (e *Escape) Layout(size int) *Struct {
	for _, s := range e.Params {
		if s.Size == size || e.Array && s.Size > 0 && size > 0 && size%s.Size == 0 {
			return s
		}
	}
	return nil
}

// Scope says which nodes take an escape.
type Scope uint8

// The scopes.
const (
	ScopeAny Scope = iota
	ScopeCtl       // nvidiactl only
	ScopeGPU       // nvidiaN only
)

// Request is a request of one of the other device nodes.
type Request struct {
	Name   string
	Nr     uint32  // as the lookup that found it takes it
	Params *Struct // nil: none
	Size   int     // bytes of Params
	Live   bool    // the driver dispatches it; false: the number is defined only
	Test   bool    // one of UVM's built-in tests
}
