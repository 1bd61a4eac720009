package rpc

import (
	"regexp/syntax"
	"strings"
	"sync"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Limits of the size of a request, before and after decompression.
const (
	maxRequestBytes = 16 << 20
	minLimit        = 64 << 10 // so that no ordinary request comes near it, however it is written
	frameBytes      = 5        // in front of a message on a stream
)

var limits sync.Map // procedure to its limit

// requestLimit returns the largest size of a request of a procedure: twice what a valid message can take in JSON,
// between minLimit and maxRequestBytes. Messages with a field of any size have maxRequestBytes.
func requestLimit(procedure string) int {
	if found, ok := limits.Load(procedure); ok {
		return found.(int)
	}
	if strings.HasPrefix(procedure, "/grpc.") { // health and reflection
		return minLimit
	}
	name := strings.ReplaceAll(strings.TrimPrefix(procedure, "/"), "/", ".")
	d, _ := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	m, ok := d.(protoreflect.MethodDescriptor)
	if !ok {
		return maxRequestBytes // not a call: not cached, or callers could fill the memory with names
	}
	n := 2 * (&measure{}).message(m.Input())
	limit := min(max((n+minLimit-1)/minLimit*minLimit, minLimit), maxRequestBytes)
	limits.Store(procedure, limit)
	return limit
}

// bodyLimit returns the largest size of the body of a request. Reflection is a stream of requests: requestLimit bounds
// each of them, not the body.
func bodyLimit(path string) int {
	if strings.HasPrefix(path, "/grpc.reflection.") {
		return maxRequestBytes
	}
	return requestLimit(path)
}

// unbounded is the size of a value without a bound, and the largest size that measure computes.
const unbounded = maxRequestBytes

// measure computes the largest JSON of valid messages.
type measure struct{ within []protoreflect.FullName }

// Sizes in JSON, besides names.
const (
	jsonNumber    = 32 // with quotes
	jsonTimestamp = 40
	jsonBytes     = 6  // \u0041, a character of one byte
	jsonCharacter = 12 // a surrogate pair: \ud83d\ude00
)

func times(a, b int) int {
	if a > 0 && b > unbounded/a {
		return unbounded
	}
	return a * b
}

func (x *measure) message(m protoreflect.MessageDescriptor) (size int) {
	switch m.FullName() {
	case "google.protobuf.Timestamp", "google.protobuf.Duration":
		return jsonTimestamp
	}
	for _, outer := range x.within {
		if outer == m.FullName() {
			return unbounded
		}
	}
	x.within = append(x.within, m.FullName())
	defer func() { x.within = x.within[:len(x.within)-1] }()
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		size = min(size+len(f.JSONName())+len(f.Name())+4+x.field(f), unbounded)
	}
	return size + 2
}

func rulesOf(f protoreflect.FieldDescriptor) *validate.FieldRules {
	rules, _ := proto.GetExtension(f.Options(), validate.E_Field).(*validate.FieldRules)
	return rules
}

func (x *measure) field(f protoreflect.FieldDescriptor) int {
	rules := rulesOf(f)
	switch {
	case f.IsMap():
		if f.Name() == "metadata" {
			return jsonBytes * maxMetadataBytes // checked when it is decoded
		}
		if !rules.GetMap().HasMaxPairs() {
			return unbounded
		}
		pair := x.value(f.MapKey(), rules.GetMap().GetKeys()) + x.value(f.MapValue(), rules.GetMap().GetValues()) + 4
		return times(pair, int(rules.GetMap().GetMaxPairs()))
	case f.IsList():
		if !rules.GetRepeated().HasMaxItems() {
			return unbounded
		}
		return times(x.value(f, rules.GetRepeated().GetItems())+1, int(rules.GetRepeated().GetMaxItems()))
	}
	return x.value(f, rules)
}

func (x *measure) value(f protoreflect.FieldDescriptor, rules *validate.FieldRules) int {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return x.message(f.Message())
	case protoreflect.StringKind:
		return text(rules.GetString())
	case protoreflect.BytesKind:
		r := rules.GetBytes()
		if !r.HasMaxLen() && !r.HasLen() {
			return unbounded
		}
		return times(2, int(min(max(r.GetMaxLen(), r.GetLen()), unbounded))) + jsonNumber // base64
	case protoreflect.EnumKind:
		longest := jsonNumber
		for i := range f.Enum().Values().Len() {
			longest = max(longest, len(f.Enum().Values().Get(i).Name())+2)
		}
		return longest
	}
	return jsonNumber
}

// text returns the size of a string with rules.
func text(r *validate.StringRules) int {
	size := unbounded
	bound := func(has bool, n uint64, each int) {
		if has {
			size = min(size, times(int(min(n, unbounded)), each))
		}
	}
	bound(r.GetIp(), jsonNumber, jsonCharacter)
	bound(r.HasLen(), r.GetLen(), jsonCharacter)
	bound(r.HasMaxLen(), r.GetMaxLen(), jsonCharacter)
	bound(r.HasLenBytes(), r.GetLenBytes(), jsonBytes)
	bound(r.HasMaxBytes(), r.GetMaxBytes(), jsonBytes)
	if p := r.GetPattern(); strings.HasPrefix(p, "^") && strings.HasSuffix(p, "$") {
		if e, err := syntax.Parse(p, syntax.Perl); err == nil {
			size = min(size, times(longest(e), jsonCharacter))
		}
	}
	return size + 2
}

// longest returns the number of characters of the longest text that an expression matches.
func longest(e *syntax.Regexp) (n int) {
	switch e.Op {
	case syntax.OpStar, syntax.OpPlus:
		return unbounded
	case syntax.OpRepeat:
		if e.Max < 0 {
			return unbounded
		}
		return times(longest(e.Sub[0]), e.Max)
	case syntax.OpLiteral:
		return len(e.Rune)
	case syntax.OpCharClass, syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return 1
	case syntax.OpAlternate:
		for _, sub := range e.Sub {
			n = max(n, longest(sub))
		}
		return n
	}
	for _, sub := range e.Sub {
		n = min(n+longest(sub), unbounded)
	}
	return n
}
