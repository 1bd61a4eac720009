package rpc

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	"github.com/ledgerd/ledgerd/internal/fault"
)

var referenceUnresolved = fault.Define(fault.Reason{Name: "REFERENCE_UNRESOLVED", Class: fault.BadRequest, Code: fault.InvalidArgument, Step: fault.Fix,
	Doc: "A reference of an operation names a part that the earlier result does not have."})

// reference fills a field of a request from the response of an earlier step.
type reference struct {
	field, result path
	from          *step
}

// newReference reads a reference and puts a value that is as good as any into the sample.
func newReference(r *batchv1.Reference, sample proto.Message, from *step) (ref reference, problem string) {
	if from == nil || from.operation.response == nil {
		return ref, "operation: names no earlier operation"
	}
	ref.from = from
	if ref.field, problem = parsePath(r.GetField(), sample.ProtoReflect().Descriptor()); problem != "" {
		return ref, "field: " + problem
	}
	if ref.result, problem = parsePath(r.GetResult(), from.operation.response); problem != "" {
		return ref, "result: " + problem
	}
	f, kind := ref.field.last(), ref.result.last().Kind()
	var value protoreflect.Value
	switch {
	case f.Kind() == protoreflect.StringKind && slices.Contains(decimalFields, f.Name()):
		value = protoreflect.ValueOfString("1")
	case f.Kind() == protoreflect.Int64Kind:
		value = protoreflect.ValueOfInt64(math.MaxInt64)
	default:
		return ref, "field: is neither an amount nor a 64-bit number"
	}
	if f.Kind() != kind {
		return ref, fmt.Sprintf("result: is of type %s, the field of type %s", kind, f.Kind())
	}
	if !ref.field.set(sample.ProtoReflect(), value) {
		return ref, "field: names an item that the list does not have"
	}
	return ref, ""
}

// fill puts the earlier result into the request.
func (r *reference) fill(request proto.Message) error {
	value, ok := r.result.get(r.from.response.ProtoReflect())
	if !ok {
		return referenceUnresolved.New("the result of operation %d has no %s", r.from.place, r.result)
	}
	r.field.set(request.ProtoReflect(), value)
	return nil
}

// path leads through messages and lists to a field.
type path []part

type part struct {
	field protoreflect.FieldDescriptor
	index int // of a list; -1: no list
}

func (p path) last() protoreflect.FieldDescriptor { return p[len(p)-1].field }

func (p path) String() string {
	var b strings.Builder
	for i, x := range p {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(string(x.field.Name()))
		if x.index >= 0 {
			fmt.Fprintf(&b, "[%d]", x.index)
		}
	}
	return b.String()
}

// parsePath reads a path such as transfer.entries[0].amount, in a message.
func parsePath(s string, in protoreflect.MessageDescriptor) (p path, problem string) {
	for name := range strings.SplitSeq(s, ".") {
		if in == nil {
			return nil, fmt.Sprintf("%s has no fields", p)
		}
		x := part{index: -1}
		name, index, list := strings.Cut(name, "[")
		if x.field = in.Fields().ByName(protoreflect.Name(name)); x.field == nil {
			return nil, fmt.Sprintf("%s has no field %q", in.Name(), name)
		}
		if list {
			digits, closed := strings.CutSuffix(index, "]")
			n, err := strconv.ParseUint(digits, 10, 16)
			if err != nil || !closed {
				return nil, "has an index that is no number"
			}
			x.index = int(n)
		}
		if x.field.IsMap() || x.field.IsList() != list {
			return nil, fmt.Sprintf("%s: a list needs an index, and nothing else has one", name)
		}
		p, in = append(p, x), x.field.Message()
	}
	return p, ""
}

// get reads the field; false when there is no such item.
func (p path) get(m protoreflect.Message) (v protoreflect.Value, ok bool) {
	for i, x := range p {
		v = m.Get(x.field)
		if x.index >= 0 {
			if x.index >= v.List().Len() {
				return v, false
			}
			v = v.List().Get(x.index)
		}
		if i < len(p)-1 {
			if m = v.Message(); !m.IsValid() {
				return v, false
			}
		}
	}
	return v, true
}

// set writes the field; false when a list has no such item.
func (p path) set(m protoreflect.Message, v protoreflect.Value) bool {
	for i, x := range p {
		if x.index >= 0 {
			l := m.Mutable(x.field).List()
			if x.index >= l.Len() {
				return false
			}
			if i == len(p)-1 {
				l.Set(x.index, v)
			} else {
				m = l.Get(x.index).Message()
			}
			continue
		}
		if i == len(p)-1 {
			m.Set(x.field, v)
		} else {
			m = m.Mutable(x.field).Message()
		}
	}
	return true
}
