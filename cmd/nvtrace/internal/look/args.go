package look

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"

	"nvtrace/cmd/nvtrace/internal/units"
	"nvtrace/fatbin"
	"nvtrace/ioctl/channels"
)

// maxShownBytes is how many bytes of a parameter are printed.
const maxShownBytes = 32

// argumentsText says what a launch gave a kernel: by its parameters, with their types if the name tells them, or
// in words of 64 bits where the parameters are not known.
func argumentsText(j *channels.JobReport) string {
	if j.Params == nil {
		return cutText(j.Arguments, 400)
	}
	types := parameterTypes(fatbin.Demangle(j.Name))
	var list []string
	for i := range j.Params {
		a, kind := &j.Params[i], ""
		if len(types) == len(j.Params) {
			kind = types[i]
		}
		text := argumentText(a, kind)
		if kind != "" {
			text = kind + " " + text
		}
		list = append(list, text)
	}
	return cutText("("+strings.Join(list, ", ")+")", 600)
}

// argumentText is one argument: a number, or bytes.
func argumentText(a *channels.Argument, kind string) string {
	le := binary.LittleEndian
	switch {
	case a.Size > 8 && len(a.Value) > 2*maxShownBytes:
		return fmt.Sprintf("{%s… %d bytes}", a.Value[:2*maxShownBytes], a.Size)
	case a.Size > 8:
		return "{" + a.Value + "}"
	case kind == "float" && len(a.Bytes) == 4:
		return strconv.FormatFloat(float64(math.Float32frombits(le.Uint32(a.Bytes))), 'g', -1, 32)
	case kind == "double" && len(a.Bytes) == 8:
		return strconv.FormatFloat(math.Float64frombits(le.Uint64(a.Bytes)), 'g', -1, 64)
	case kind == "int" && len(a.Bytes) == 4:
		return strconv.Itoa(int(int32(le.Uint32(a.Bytes))))
	case kind == "long" && len(a.Bytes) == 8:
		return strconv.FormatInt(int64(le.Uint64(a.Bytes)), 10)
	case strings.HasPrefix(kind, "unsigned "):
		if n, err := strconv.ParseUint(a.Value, 0, 64); err == nil {
			return strconv.FormatUint(n, 10)
		}
	}
	return a.Value
}

// parameterTypes returns the types in the last pair of brackets of a demangled function, nil if there are none.
func parameterTypes(name string) (types []string) {
	if !strings.HasSuffix(name, ")") {
		return nil
	}
	depth, begin := 0, -1
	for i := len(name) - 1; i >= 0 && begin < 0; i-- {
		switch name[i] {
		case ')':
			depth++
		case '(':
			if depth--; depth == 0 {
				begin = i + 1
			}
		}
	}
	if begin < 0 {
		return nil
	}
	from := begin
	depth = 0
	for i := begin; i < len(name); i++ {
		switch name[i] {
		case '(', '<', '[', '{':
			depth++
		case ')', '>', ']', '}':
			depth--
		}
		if end := depth < 0; end || depth == 0 && name[i] == ',' {
			if text := strings.TrimSpace(name[from:i]); text != "" {
				types = append(types, text)
			}
			if from = i + 1; end {
				break
			}
		}
	}
	return types
}

// ncclText says what a kernel of NCCL's was given to do.
func ncclText(n *channels.NCCL) string {
	var b strings.Builder
	b.WriteString(n.Operation)
	if n.Elements > 0 {
		fmt.Fprintf(&b, " of %d elements", n.Elements)
	}
	if n.Root != nil {
		fmt.Fprintf(&b, ", root %d", *n.Root)
	}
	if n.SendTo != nil {
		fmt.Fprintf(&b, ", sends %s to rank %d", units.Memory(n.SendBytes), *n.SendTo)
	}
	if n.From != nil {
		fmt.Fprintf(&b, ", receives %s from rank %d", units.Memory(n.FromBytes), *n.From)
	}
	if n.Works > 1 {
		fmt.Fprintf(&b, ", the first of %d works", n.Works)
	}
	fmt.Fprintf(&b, ", communicator %s", n.Comm)
	return b.String()
}
