package rpc

import (
	"errors"
	"slices"
	"strings"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// maxFields is how many bad fields an error names: it has to fit into a trailer.
const maxFields = 20

// check holds a request against what is true of all of them, then against the rules in its proto.
func check(m proto.Message) error {
	if err := unread(m); err != nil {
		return err
	}
	if field, problem := readable(m.ProtoReflect()); problem != "" {
		return fault.FieldInvalid.New("%s: %s", field, problem).WithField(field, problem)
	}
	return broken(protovalidate.Validate(m))
}

// broken is what protovalidate says as a fault.
func broken(err error) error {
	var v *protovalidate.ValidationError
	if !errors.As(err, &v) {
		return err
	}
	f := fault.FieldInvalid.New("the request breaks %d rules", len(v.Violations))
	for _, x := range v.Violations[:min(len(v.Violations), maxFields)] {
		f = f.WithField(protovalidate.FieldPathString(x.Proto.GetField()), describe(x))
	}
	if len(f.Fields) == 1 {
		f.Message = f.Fields[0].Path + ": " + f.Fields[0].Description
	}
	return f
}

// describe says what is wrong with a field. For an enum it lists the allowed names, where protovalidate lists numbers.
func describe(x *protovalidate.Violation) string {
	f := x.FieldDescriptor
	if f == nil || f.Enum() == nil || !strings.HasPrefix(x.Proto.GetRuleId(), "enum.") {
		return x.Proto.GetMessage()
	}
	rules, _ := proto.GetExtension(f.Options(), validate.E_Field).(*validate.FieldRules)
	allowed := rules.GetEnum()
	if f.IsList() {
		allowed = rules.GetRepeated().GetItems().GetEnum()
	}
	var names []string
	for i := range f.Enum().Values().Len() {
		v := f.Enum().Values().Get(i)
		n := int32(v.Number())
		if n == 0 || slices.Contains(allowed.GetNotIn(), n) || len(allowed.GetIn()) > 0 &&
			!slices.Contains(allowed.GetIn(), n) {
			continue // 0 is UNSPECIFIED: the default, if the field has one
		}
		names = append(names, string(v.Name()))
	}
	return "must be one of " + strings.Join(names, ", ")
}

// check checks a request. Items of a batch that stand for themselves do not fail the call: what is
// wrong with one is left in c.bad. Good batches are gone through once.
func (c *call) check(m proto.Message) error {
	err := check(m)
	batch, ok := m.(*ledgerv1.TransferBatchRequest)
	if err == nil || !ok || batch.GetAllOrNothing() || len(batch.ProtoReflect().GetUnknown()) > 0 {
		return err
	}
	shell := protovalidate.FilterFunc(func(part protoreflect.Message, _ protoreflect.Descriptor) bool {
		return part.Descriptor() == batch.ProtoReflect().Descriptor()
	})
	if err := broken(protovalidate.Validate(batch, protovalidate.WithFilter(shell))); err != nil {
		return err
	}
	c.bad = make(map[int]error)
	for i, item := range batch.GetItems() {
		if err := checkItem(item); err != nil {
			c.bad[i] = err
		}
	}
	if len(c.bad) == 0 {
		return err
	}
	return nil
}

// checkItem says of an item what would be said of a lone call: first of its key.
func checkItem(item *ledgerv1.TransferBatchItem) error {
	if key := item.GetIdempotencyKey(); key != "" {
		if _, err := ParseKey(key); err != nil {
			return err
		}
	}
	if t := item.GetTransfer(); t != nil {
		if err := check(t); err != nil {
			return err
		}
	}
	return check(item)
}

// readable refuses what no call can mean: a field that this server does not know, which may be a
// condition, and NUL, which Postgres cannot store. It returns the path of the first such field.
func readable(m protoreflect.Message) (field, problem string) {
	if len(m.GetUnknown()) > 0 {
		return string(m.Descriptor().Name()), "has a field that this server does not know"
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				if field, problem = readableValue(f.MapKey(), k.Value()); problem == "" {
					field, problem = readableValue(f.MapValue(), v)
				}
				return problem == ""
			})
		case f.IsList():
			switch f.Kind() {
			case protoreflect.StringKind, protoreflect.MessageKind:
				l := v.List()
				for i := 0; i < l.Len() && problem == ""; i++ {
					field, problem = readableValue(f, l.Get(i))
				}
			}
		default:
			field, problem = readableValue(f, v)
		}
		if problem != "" {
			field = strings.TrimSuffix(string(f.Name())+"."+field, ".")
		}
		return problem == ""
	})
	return field, problem
}

func readableValue(f protoreflect.FieldDescriptor, v protoreflect.Value) (field, problem string) {
	switch f.Kind() {
	case protoreflect.StringKind:
		if strings.IndexByte(v.String(), 0) >= 0 {
			return "", "must not contain a NUL character"
		}
	case protoreflect.MessageKind:
		return readable(v.Message())
	}
	return "", ""
}
