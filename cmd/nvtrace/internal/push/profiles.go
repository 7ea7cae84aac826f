package push

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/google/pprof/profile"
)

// Numbers of messages' fields, as in opentelemetry/proto/profiles/v1development/profiles.proto, which is an alpha version.
// Tables have an empty entry in front: 0 is none.
const (
	requestDictionary = 2
	profilesResource  = 1 // of ResourceProfiles
	profilesScopes    = 2
	scopeProfiles     = 2 // of ScopeProfiles

	dictionaryMappings   = 1
	dictionaryLocations  = 2
	dictionaryFunctions  = 3
	dictionaryLinks      = 4
	dictionaryStrings    = 5
	dictionaryAttributes = 6
	dictionaryStacks     = 7

	profileType       = 1
	profileSamples    = 2
	profileTime       = 3
	profileDuration   = 4
	profilePeriodType = 5
	profilePeriod     = 6
	profileID         = 7

	sampleStack  = 1
	sampleAttrs  = 2
	sampleValues = 4

	stackLocations = 1
	locationLines  = 3
	locationAttrs  = 4
	lineFunction   = 1
	lineLine       = 2
	functionName   = 1
	functionFile   = 3

	typeName = 1 // of ValueType
	typeUnit = 2

	keyText  = 1 // of KeyValueAndUnit
	keyValue = 2
)

// dictionary is the tables of a request.
type dictionary struct {
	message
	strings map[string]uint64
	attrs   map[[2]string]uint64
	stacks  map[string]uint64
}

func newDictionary() *dictionary {
	d := &dictionary{strings: make(map[string]uint64), attrs: make(map[[2]string]uint64), stacks: make(map[string]uint64)}
	for _, table := range []int{dictionaryMappings, dictionaryLocations, dictionaryFunctions, dictionaryLinks, dictionaryAttributes, dictionaryStacks} {
		d.bytes(table, nil)
	}
	d.string("")
	return d
}

func (d *dictionary) string(s string) uint64 {
	n, ok := d.strings[s]
	if !ok {
		n = uint64(len(d.strings))
		d.strings[s] = n
		d.bytes(dictionaryStrings, []byte(text(s)))
	}
	return n
}

func (d *dictionary) attr(key, value string) uint64 {
	k := [2]string{key, value}
	n, ok := d.attrs[k]
	if !ok {
		var v, m message
		v.text(valueString, text(value))
		m.uint(keyText, d.string(key))
		m.bytes(keyValue, v)
		n = uint64(len(d.attrs) + 1)
		d.attrs[k] = n
		d.bytes(dictionaryAttributes, m)
	}
	return n
}

func (d *dictionary) stack(locations []*profile.Location) uint64 {
	var list []uint64
	for _, l := range locations {
		list = append(list, l.ID) // which pprof numbers from 1 on
	}
	var m message
	m.packed(stackLocations, list)
	n, ok := d.stacks[string(m)]
	if !ok {
		n = uint64(len(d.stacks) + 1)
		d.stacks[string(m)] = n
		d.bytes(dictionaryStacks, m)
	}
	return n
}

// code puts the functions and locations of a profile into the tables, in whose order they are numbered.
func (d *dictionary) code(p *profile.Profile) {
	for i, f := range p.Function {
		f.ID = uint64(i + 1)
		var m message
		m.uint(functionName, d.string(f.Name))
		m.uint(functionFile, d.string(f.Filename))
		d.bytes(dictionaryFunctions, m)
	}
	for i, l := range p.Location {
		l.ID = uint64(i + 1)
		var m message
		gpu := false
		for _, line := range l.Line {
			var x message
			x.uint(lineFunction, line.Function.ID)
			x.uint(lineLine, uint64(line.Line))
			m.bytes(locationLines, x)
			gpu = gpu || line.Function.Filename == "GPU"
		}
		if gpu {
			m.packed(locationAttrs, []uint64{d.attr("profile.frame.type", "cuda")})
		}
		d.bytes(dictionaryLocations, m)
	}
}

// Profile sends a profile.
func (o *OTLP) Profile(x *Profile) error {
	e := o.to[profiles]
	if e == nil {
		return nil
	}
	p, err := profile.ParseData(x.Pprof)
	if err != nil {
		return fmt.Errorf("a profile: %w", err)
	}
	d := newDictionary()
	d.code(p)
	var resource, scope, inScope, inResource, all message
	for _, a := range o.of.Attrs {
		resource.attr(resourceAttrs, a)
	}
	scope.text(scopeName, "nvtrace")
	scope.text(scopeVersion, o.of.Version)
	inScope.bytes(scopeOf, scope)
	for i := range p.SampleType {
		inScope.bytes(scopeProfiles, d.profile(p, i))
	}
	inResource.bytes(profilesResource, resource)
	inResource.bytes(profilesScopes, inScope)
	all.bytes(requestResources, inResource)
	all.bytes(requestDictionary, d.message)
	o.add(item{e, all, "profile", 1})
	return nil
}

// profile is the profile of one of the values that samples have.
func (d *dictionary) profile(p *profile.Profile, value int) message {
	valueType := func(t *profile.ValueType) message {
		var m message
		m.uint(typeName, d.string(t.Type))
		m.uint(typeUnit, d.string(t.Unit))
		return m
	}
	var m message
	m.bytes(profileType, valueType(p.SampleType[value]))
	for _, s := range p.Sample {
		if s.Value[value] == 0 {
			continue
		}
		var x message
		x.uint(sampleStack, d.stack(s.Location))
		var attrs []uint64
		for _, k := range slices.Sorted(maps.Keys(s.Label)) {
			for _, v := range s.Label[k] {
				attrs = append(attrs, d.attr(k, v))
			}
		}
		x.packed(sampleAttrs, attrs)
		x.packed(sampleValues, []uint64{uint64(s.Value[value])})
		m.bytes(profileSamples, x)
	}
	m.fixed64(profileTime, uint64(p.TimeNanos))
	m.uint(profileDuration, uint64(p.DurationNanos))
	m.bytes(profilePeriodType, valueType(p.PeriodType))
	m.uint(profilePeriod, uint64(p.Period))
	id := make([]byte, 16)
	for i := range id {
		id[i] = byte(rand.IntN(255) + 1)
	}
	m.bytes(profileID, id)
	return m
}
