package rpc

import (
	"errors"
	"strings"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

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
	err := protovalidate.Validate(m)
	if err == nil {
		return nil
	}
	var v *protovalidate.ValidationError
	if !errors.As(err, &v) {
		return err
	}
	f := fault.FieldInvalid.New("the request breaks %d rules", len(v.Violations))
	for _, x := range v.Violations[:min(len(v.Violations), maxFields)] {
		f = f.WithField(protovalidate.FieldPathString(x.Proto.GetField()), x.Proto.GetMessage())
	}
	if len(f.Fields) == 1 {
		f.Message = f.Fields[0].Path + ": " + f.Fields[0].Description
	}
	return f
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
			return "", "must not hold a NUL character"
		}
	case protoreflect.MessageKind:
		return readable(v.Message())
	}
	return "", ""
}
