package rpc

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	"github.com/ledgerd/ledgerd/internal/fault"
)

var referenceUnresolved = fault.Register(fault.Reason{Name: "REFERENCE_UNRESOLVED", Class: fault.BadRequest,
	Code: fault.InvalidArgument, Step: fault.Fix,
	Doc: "A reference of an operation names a field that the earlier result does not have."})

// reference fills a field of a request from the response of an earlier step.
type reference struct {
	field, result path
	from          *step
	names         bool // the field names a row
}

// nameFields lists fields that name rows, and that references may fill nevertheless: the batch then runs again with
// those rows.
var nameFields = []protoreflect.Name{"reservation_no", "order_no"}

// newReference decodes a reference and puts a placeholder into the sample. A problem begins with the field of the
// reference and a colon.
func newReference(r *batchv1.Reference, sample proto.Message, from *step) (ref reference, problem string) {
	if from == nil || from.operation.response == nil {
		return ref, "operation: must be the name of an earlier operation that has a result"
	}
	ref.from = from
	if ref.field, problem = parsePath(r.GetField(), sample.ProtoReflect().Descriptor()); problem != "" {
		return ref, "field: " + problem
	}
	if other := ref.field.replaces(sample.ProtoReflect()); other != "" {
		return ref, fmt.Sprintf("field: %s is set, and only one of the two may be", other)
	}
	if ref.field.isSet(sample.ProtoReflect()) {
		return ref, "field: is set already, by the request or another reference: leave one of them out"
	}
	if ref.result, problem = parsePath(r.GetResult(), from.operation.response); problem != "" {
		return ref, "result: " + problem
	}
	f, kind := ref.field.last(), ref.result.last().Kind()
	var value protoreflect.Value
	switch {
	case ref.result.inStruct():
		return ref, "result: must not lead into a google.protobuf.Struct"
	case ref.field.inStruct():
		if value = variable(ref.result.last(), ref.result.last().Default()); !value.IsValid() {
			return ref, "result: is not a string, number, bool or time, so it cannot be a variable of a template"
		}
		ref.field.set(sample.ProtoReflect(), value)
		return ref, ""
	case f.Kind() == protoreflect.StringKind && slices.Contains(decimalFields, f.Name()):
		value = protoreflect.ValueOfString("1")
	case !fitting(f, ref.result.last()):
		return ref, fmt.Sprintf("result: %s is no %s", ref.result, f.Name())
	case f.Kind() == protoreflect.Int64Kind:
		value = protoreflect.ValueOfInt64(1) // no row has this id, and quantities are at least 1
	case f.Kind() == protoreflect.StringKind && slices.Contains(nameFields, f.Name()):
		value, ref.names = protoreflect.ValueOfString("reference"), true
	default:
		return ref, "field: must be an amount, a 64-bit number, a reservation_no, " +
			"an order_no or a variable of a template"
	}
	if f.Kind() != kind {
		return ref, fmt.Sprintf("result: is of type %s, the field of type %s", kind, f.Kind())
	}
	if !ref.field.set(sample.ProtoReflect(), value) {
		return ref, "field: has an index beyond the end of the list"
	}
	return ref, ""
}

// fitting reports whether a field accepts the id in a result: hold_id accepts a hold_id, and the id of a hold.
func fitting(field, result protoreflect.FieldDescriptor) bool {
	resource, ok := strings.CutSuffix(string(field.Name()), "_id")
	if !ok {
		return true
	}
	of := strings.TrimSuffix(string(result.Name()), "_id")
	switch of {
	case "id":
		of = strings.ToLower(string(result.Parent().Name()))
	case "reverses", "reversed_by":
		of = "transfer"
	}
	return strings.HasSuffix(of, resource)
}

// fill copies the value from the earlier result into the request. name is the value if the field names a row.
func (r *reference) fill(request proto.Message) (name string, err error) {
	value, ok := r.result.get(r.from.response.ProtoReflect())
	if last := r.result.last(); ok && last.Kind() == protoreflect.MessageKind {
		ok = value.Message().IsValid()
	}
	if r.names && ok {
		ok = value.String() != "" // such as the order_no of a grab that won nothing
	}
	if !ok {
		problem := fmt.Sprintf("the result of operation %d has no %s", r.from.index, r.result)
		return "", referenceUnresolved.New("%s", problem).WithField(r.field.String(), problem)
	}
	if r.field.inStruct() {
		value = variable(r.result.last(), value)
	}
	r.field.set(request.ProtoReflect(), value)
	if r.names {
		name = value.String()
	}
	return name, nil
}

// variable converts a field of a result to the value of a template variable. Invalid: the field's type cannot be one.
func variable(f protoreflect.FieldDescriptor, v protoreflect.Value) protoreflect.Value {
	var value *structpb.Value
	switch f.Kind() {
	case protoreflect.StringKind, protoreflect.Int32Kind, protoreflect.Int64Kind, protoreflect.Uint32Kind,
		protoreflect.Uint64Kind:
		value = structpb.NewStringValue(v.String()) // numbers too: a JSON number has only 53 bits
	case protoreflect.BoolKind:
		value = structpb.NewBoolValue(v.IsValid() && v.Bool())
	case protoreflect.MessageKind:
		if f.Message().FullName() != timeName {
			return protoreflect.Value{}
		}
		t := new(timestamppb.Timestamp)
		if v.IsValid() {
			t = v.Message().Interface().(*timestamppb.Timestamp)
		}
		value = structpb.NewStringValue(t.AsTime().Format(time.RFC3339Nano))
	default:
		return protoreflect.Value{}
	}
	return protoreflect.ValueOfMessage(value.ProtoReflect())
}

var (
	timeName   = (*timestamppb.Timestamp)(nil).ProtoReflect().Descriptor().FullName()
	structName = (*structpb.Struct)(nil).ProtoReflect().Descriptor().FullName()
)

// path is the way through messages and lists to a field, or to a value of a Struct (a variable of a template).
type path []part

type part struct {
	field protoreflect.FieldDescriptor
	index int    // in a list; -1: not a list
	key   string // in a Struct; empty: not a Struct
}

func (p path) inStruct() bool { return p[len(p)-1].key != "" }

func (p path) last() protoreflect.FieldDescriptor { return p[len(p)-1].field }

func (p path) String() string {
	var b strings.Builder
	for i, x := range p {
		if i > 0 {
			b.WriteByte('.')
		}
		if b.WriteString(x.key); x.key == "" {
			b.WriteString(string(x.field.Name()))
		}
		if x.index >= 0 {
			fmt.Fprintf(&b, "[%d]", x.index)
		}
	}
	return b.String()
}

// parsePath parses a path such as transfer.entries[0].amount for a type of message. Names are those of the proto or of
// JSON.
func parsePath(s string, in protoreflect.MessageDescriptor) (p path, problem string) {
	for name := range strings.SplitSeq(s, ".") {
		if in == nil {
			return nil, fmt.Sprintf("%s has no fields", p)
		}
		x := part{index: -1}
		if in.FullName() == structName {
			if name == "" || strings.ContainsAny(name, "[]") {
				return nil, fmt.Sprintf("%q is not the name of a variable, or of a field of one", name)
			}
			x.key, x.field = name, in.Fields().ByName("fields")
			p = append(p, x)
			continue
		}
		name, index, list := strings.Cut(name, "[")
		if x.field = in.Fields().ByName(protoreflect.Name(name)); x.field == nil {
			x.field = in.Fields().ByJSONName(name)
		}
		if x.field == nil {
			return nil, fmt.Sprintf("%s has no field %q", in.Name(), name)
		}
		if list {
			digits, closed := strings.CutSuffix(index, "]")
			n, err := strconv.ParseUint(digits, 10, 16)
			if err != nil || !closed {
				return nil, "has an index that is not a number from 0 to 65535"
			}
			x.index = int(n)
		}
		if x.field.IsMap() || x.field.IsList() != list {
			return nil, fmt.Sprintf("%s: a list requires an index such as [0], and other fields take none", name)
		}
		p, in = append(p, x), x.field.Message()
	}
	return p, ""
}

// replaces returns a field that set would clear, because both are in a oneof, or empty.
func (p path) replaces(m protoreflect.Message) protoreflect.Name {
	for _, x := range p {
		if x.key != "" {
			return ""
		}
		if of := x.field.ContainingOneof(); of != nil {
			if set := m.WhichOneof(of); set != nil && set != x.field {
				return set.Name()
			}
		}
		switch {
		case x.index >= 0 && x.field.Message() != nil && x.index < m.Get(x.field).List().Len():
			m = m.Get(x.field).List().Get(x.index).Message()
		case x.index < 0 && x.field.Message() != nil && m.Has(x.field):
			m = m.Get(x.field).Message()
		default:
			return ""
		}
	}
	return ""
}

// get returns the value of the field. ok is false if a list is too short or a message is not set.
func (p path) get(m protoreflect.Message) (v protoreflect.Value, ok bool) {
	for i, x := range p {
		if x.key != "" {
			return v, false
		}
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

// isSet reports whether a message has a value other than the default in the field.
func (p path) isSet(m protoreflect.Message) bool {
	for i, x := range p {
		if x.key == "" && !m.Has(x.field) {
			return false
		}
		switch {
		case x.key != "":
			v := m.Get(x.field).Map().Get(protoreflect.ValueOfString(x.key).MapKey())
			if !v.IsValid() || i == len(p)-1 {
				return v.IsValid()
			}
			m = v.Message().Interface().(*structpb.Value).GetStructValue().ProtoReflect()
		case x.index < 0 && i == len(p)-1:
			return true
		case x.index < 0:
			m = m.Get(x.field).Message()
		case x.index >= m.Get(x.field).List().Len():
			return false
		case i == len(p)-1:
			return !m.Get(x.field).List().Get(x.index).Equal(m.NewField(x.field).List().NewElement())
		default:
			m = m.Get(x.field).List().Get(x.index).Message()
		}
	}
	return false
}

// set sets the field. It returns false if a list is too short.
func (p path) set(m protoreflect.Message, v protoreflect.Value) bool {
	for i, x := range p {
		if x.key != "" {
			values, key := m.Mutable(x.field).Map(), protoreflect.ValueOfString(x.key).MapKey()
			if i == len(p)-1 {
				values.Set(key, v)
			} else {
				inner := values.Mutable(key).Message()
				m = inner.Mutable(inner.Descriptor().Fields().ByName("struct_value")).Message()
			}
			continue
		}
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
