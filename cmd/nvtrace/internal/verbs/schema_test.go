package verbs

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"nvtrace/cmd/nvtrace/internal/clitest"
)

// valued keeps what a verb prints, and the results that it prints.
type valued struct {
	bytes.Buffer
	values []any
}

// Value implements cli.Values.
func (v *valued) Value(x any) { v.values = append(v.values, x) }

// A schemaSet has the JSON Schema of each verb's result, made of its Go type.
type schemaSet map[string]map[string]any

// add makes the schema of a verb, and checks what it has printed against it.
func (s schemaSet) add(t *testing.T, verb string, result, printed any) {
	t.Helper()
	m := schemaMaker{map[string]any{}}
	schema := m.of(reflect.TypeOf(result), "")
	schema = maps.Clone(schema)
	schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	schema["title"] = "nvtrace " + verb + " --json"
	if len(m.defs) > 0 {
		schema["$defs"] = m.defs
	}
	s[strings.ReplaceAll(verb, " ", "-")] = schema
	if why := conforms(schema, schema, printed, "$"); why != "" {
		t.Errorf("nvtrace %s --json: %s", verb, why)
	}
}

// check compares the schemas with those that are there, or writes them anew.
func (s schemaSet) check(t *testing.T, dir string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(s)) {
		b, err := json.MarshalIndent(s[name], "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, '\n')
		file := filepath.Join(dir, name+".json")
		if *clitest.Update {
			if err := os.WriteFile(file, b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if old, err := os.ReadFile(file); err != nil || !bytes.Equal(old, b) {
			t.Errorf("%s is not what the verb prints now (go test -update): %v", file, err)
		}
	}
	there, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(there) != len(s) {
		t.Errorf("%d schemas in %s, and %d verbs: %v", len(there), dir, len(s), err)
	}
}

// A schemaMaker makes schemas of types; structs are definitions, by their names.
type schemaMaker struct{ defs map[string]any }

var (
	marshaler     = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

// of returns the schema of a type; options are those of the field's tag.
func (m *schemaMaker) of(t reflect.Type, options string) map[string]any {
	either := func(what map[string]any) map[string]any {
		if strings.Contains(options, "omitempty") {
			return what
		}
		return map[string]any{"anyOf": []any{what, map[string]any{"type": "null"}}}
	}
	switch {
	case t == nil || t.Kind() == reflect.Interface || t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler):
		return map[string]any{} // it says itself what it prints
	case t.Implements(textMarshaler) || strings.Contains(options, "string"):
		return map[string]any{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Pointer:
		return either(m.of(t.Elem(), ""))
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return either(map[string]any{"type": "string"})
		}
		return either(map[string]any{"type": "array", "items": m.of(t.Elem(), "")})
	case reflect.Map:
		return either(map[string]any{"type": "object", "additionalProperties": m.of(t.Elem(), "")})
	case reflect.Struct:
		name := t.String()
		if t.Name() == "" {
			return m.object(t)
		}
		if m.defs[name] == nil {
			m.defs[name] = map[string]any{} // for what leads back
			m.defs[name] = m.object(t)
		}
		return map[string]any{"$ref": "#/$defs/" + name}
	}
	return map[string]any{"type": "integer"}
}

// object returns the schema of a struct.
func (m *schemaMaker) object(t reflect.Type) map[string]any {
	properties, required := map[string]any{}, []any{}
	var add func(t reflect.Type)
	add = func(t reflect.Type) {
		for f := range t.Fields() {
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case name == "-":
				continue
			case f.Anonymous && name == "":
				inner := f.Type
				if inner.Kind() == reflect.Pointer {
					inner = inner.Elem()
				}
				add(inner)
				continue
			case !f.IsExported():
				continue
			case name == "":
				name = f.Name
			}
			properties[name] = m.of(f.Type, options)
			if !strings.Contains(options, "omit") {
				required = append(required, name)
			}
		}
	}
	add(t)
	return map[string]any{"type": "object", "properties": properties, "required": required, "additionalProperties": false}
}

// conforms says where a value is not as a schema has it, "" if it is; it knows the words that are used here.
func conforms(root, schema map[string]any, v any, at string) string {
	if ref, ok := schema["$ref"].(string); ok {
		return conforms(root, root["$defs"].(map[string]any)[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any), v, at)
	}
	if list, ok := schema["anyOf"].([]any); ok {
		why := ""
		for _, s := range list {
			w := conforms(root, s.(map[string]any), v, at)
			if w == "" {
				return ""
			}
			if why == "" {
				why = w
			}
		}
		return why
	}
	kind := ""
	switch v := v.(type) {
	case nil:
		kind = "null"
	case bool:
		kind = "boolean"
	case string:
		kind = "string"
	case float64:
		if kind = "number"; v == float64(int64(v)) && schema["type"] == "integer" {
			kind = "integer"
		}
	case []any:
		kind = "array"
		items, _ := schema["items"].(map[string]any)
		for i, x := range v {
			if why := conforms(root, items, x, fmt.Sprintf("%s[%d]", at, i)); why != "" {
				return why
			}
		}
	case map[string]any:
		kind = "object"
		if why := conformsObject(root, schema, v, at); why != "" {
			return why
		}
	}
	if want, ok := schema["type"]; ok && want != kind {
		return fmt.Sprintf("%s is a %s, not a %v", at, kind, want)
	}
	return ""
}

func conformsObject(root, schema, v map[string]any, at string) string {
	properties, _ := schema["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(v)) {
		s, known := properties[name].(map[string]any)
		if !known {
			more, open := schema["additionalProperties"].(map[string]any)
			if closed, ok := schema["additionalProperties"].(bool); ok && !closed {
				return at + " has a member " + name + ", of which the schema does not know"
			}
			if s = more; !open {
				continue
			}
		}
		if why := conforms(root, s, v[name], at+"."+name); why != "" {
			return why
		}
	}
	required, _ := schema["required"].([]any)
	for _, name := range required {
		if _, there := v[name.(string)]; !there {
			return fmt.Sprintf("%s has no member %v", at, name)
		}
	}
	return ""
}

// TestConforms: what does not fit is found.
func TestConforms(t *testing.T) {
	m := schemaMaker{map[string]any{}}
	schema := m.of(reflect.TypeFor[struct {
		A int      `json:"a"`
		B []string `json:"b,omitempty"`
		C *bool    `json:"c"`
	}](), "")
	for text, want := range map[string]string{
		`{"a":1,"c":null}`:           "",
		`{"a":1,"b":["x"],"c":true}`: "",
		`{"a":1.5,"c":null}`:         "$.a is a number, not a integer",
		`{"a":1}`:                    "$ has no member c",
		`{"a":1,"c":2}`:              "$.c is a number, not a boolean",
		`{"a":1,"b":[2],"c":true}`:   "$.b[0] is a number, not a string",
		`{"a":1,"c":null,"d":1}`:     "$ has a member d, of which the schema does not know",
		`[]`:                         "$ is a array, not a object",
	} {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		if got := conforms(schema, schema, v, "$"); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
