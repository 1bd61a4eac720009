package rpc

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// check validates a request: first rules common to all messages, then the rules of its proto.
func check(m proto.Message) error {
	if len(m.ProtoReflect().GetUnknown()) > 0 {
		if err := decodeError(m); err != nil {
			return err
		}
	}
	if path, problem := findInvalid(m.ProtoReflect()); problem != "" {
		return fault.InvalidField(path, "%s", problem)
	}
	if err := protovalidate.Validate(m); err != nil {
		return violationFault(m, err)
	}
	return nil
}

// violationFault converts an error of protovalidate about a message to a fault.
func violationFault(m proto.Message, err error) error {
	v, ok := errors.AsType[*protovalidate.ValidationError](err)
	if !ok {
		return err
	}
	f := fault.FieldInvalid.New("the request breaks a rule")
	for _, x := range v.Violations[:min(len(v.Violations), fault.MaxFields)] {
		path := protovalidate.FieldPathString(x.Proto.GetField())
		field, oneof := target(m.ProtoReflect().Descriptor(), x.Proto.GetField())
		if oneof != nil { // callers know its members, not its name
			path = strings.TrimSuffix(path, string(oneof.Name())) + string(oneof.Fields().Get(0).Name())
			f = f.WithField(path, "must be set, or "+otherMembers(oneof))
			continue
		}
		if x.Proto.GetRuleId() == "repeated.unique" {
			path += fmt.Sprintf("[%d]", repeatedAt(x.FieldValue.List()))
		}
		f = f.WithField(path, describe(x, field))
	}
	f.Message = f.Fields[0].Path + ": " + f.Fields[0].Description + fault.AndMore(len(v.Violations)-1)
	return f
}

// repeatedAt returns the index of the first element that equals an earlier one.
func repeatedAt(l protoreflect.List) int {
	seen := make(map[string]bool, l.Len())
	for i := range l.Len() {
		v := l.Get(i).String()
		if seen[v] {
			return i
		}
		seen[v] = true
	}
	return 0
}

// target returns the field, or the oneof, to which a path of protovalidate leads.
func target(in protoreflect.MessageDescriptor, path *validate.FieldPath) (f protoreflect.FieldDescriptor,
	o protoreflect.OneofDescriptor) {
	for _, e := range path.GetElements() {
		if in == nil {
			return nil, nil
		}
		if f = in.Fields().ByNumber(protoreflect.FieldNumber(e.GetFieldNumber())); f == nil {
			return nil, in.Oneofs().ByName(protoreflect.Name(e.GetFieldName()))
		}
		if in = f.Message(); f.IsMap() {
			in = f.MapValue().Message()
		}
	}
	return f, nil
}

// otherMembers lists all members of a oneof except the first.
func otherMembers(o protoreflect.OneofDescriptor) string {
	var names []string
	for i := 1; i < o.Fields().Len(); i++ {
		names = append(names, string(o.Fields().Get(i).Name()))
	}
	return strings.Join(names, ", or ")
}

// simplePattern matches the patterns of names: an optional class for the first character, a class for the rest, and
// bounds of their number. The pattern of an optional name is wrapped in "(…)?".
var simplePattern = regexp.MustCompile(`^\^\(?\[([^\]]+)\](?:\[([^\]]+)\])?(?:\{(\d+),(\d+)\}|\*)(?:\)\?)?\$$`)

// describePattern says in words what a pattern requires. Empty: it is not a simple one.
func describePattern(pattern string) string {
	if pattern == `^[^\p{Cc}]*$` {
		return "must not have control characters"
	}
	m := simplePattern.FindStringSubmatch(pattern)
	if m == nil {
		return ""
	}
	first, rest, least, most := m[1], m[2], m[3], m[4]
	text := "must consist"
	if most != "" {
		from, _ := strconv.Atoi(least)
		to, _ := strconv.Atoi(most)
		if rest != "" {
			from, to = from+1, to+1
		}
		text = fmt.Sprintf("must be %d to %d characters", from, to)
		if from == 0 {
			text = fmt.Sprintf("must be at most %d characters", to)
		}
	}
	if rest == "" {
		return text + " of " + characters(first)
	}
	return text + " of " + characters(rest) + ", the first of " + characters(first)
}

// characters renders a character class of a regular expression as a list, such as "a-z, 0-9 and dots".
func characters(class string) string {
	var list []string
	for i := 0; i < len(class); i++ {
		if i+2 < len(class) && class[i+1] == '-' {
			list = append(list, class[i:i+3])
			i += 2
			continue
		}
		c := class[i : i+1]
		if name := map[string]string{".": "dots", ":": "colons", "/": "slashes"}[c]; name != "" {
			c = name
		}
		list = append(list, c)
	}
	if len(list) == 1 {
		return list[0]
	}
	return strings.Join(list[:len(list)-1], ", ") + " and " + list[len(list)-1]
}

// describe returns the rule that a field breaks, where the text of protovalidate does not help callers: it lists enums
// as numbers, and calls a missing field too short.
func describe(x *protovalidate.Violation, f protoreflect.FieldDescriptor) string {
	switch rule := x.Proto.GetRuleId(); {
	case rule == "required":
		return "must be set"
	case (rule == "string.min_len" || rule == "string.min_bytes") && x.RuleValue.Uint() == 1:
		return "must not be empty"
	case rule == "string.not_in":
		return "must not be " + strings.Join(ruleTexts(x), " or ") + ": reserved"
	case rule == "repeated.unique":
		return "must not be the same as an element before it"
	case rule == "repeated.min_items" && x.RuleValue.Uint() == 1:
		return "must have an element"
	case rule == "repeated.min_items":
		return fmt.Sprintf("must have at least %d elements", x.RuleValue.Uint())
	case rule == "repeated.max_items":
		return fmt.Sprintf("must have at most %d elements", x.RuleValue.Uint())
	case rule == "map.max_pairs":
		return fmt.Sprintf("must have at most %d names", x.RuleValue.Uint())
	case rule == "string.pattern":
		text := describePattern(x.RuleValue.String())
		length, ok := strings.CutPrefix(text, "must be ")
		switch empty := x.FieldValue.String() == ""; {
		case empty && ok:
			return "must not be empty: " + length
		case empty:
			return "must not be empty"
		case text != "":
			return text
		}
	case strings.HasPrefix(rule, "enum.") && f != nil && f.Enum() != nil:
		if !f.IsList() && x.FieldValue.Enum() == 0 {
			return "must be set, to one of " + strings.Join(allowedNames(f), ", ")
		}
		return "must be one of " + strings.Join(allowedNames(f), ", ")
	}
	return x.Proto.GetMessage()
}

// ruleTexts returns the strings of a rule that is a list.
func ruleTexts(x *protovalidate.Violation) (texts []string) {
	for i := range x.RuleValue.List().Len() {
		texts = append(texts, x.RuleValue.List().Get(i).String())
	}
	return texts
}

// allowedNames returns the names of the values that a field of an enum may have.
func allowedNames(f protoreflect.FieldDescriptor) (names []string) {
	rules, _ := proto.GetExtension(f.Options(), validate.E_Field).(*validate.FieldRules)
	allowed := rules.GetEnum()
	if f.IsList() {
		allowed = rules.GetRepeated().GetItems().GetEnum()
	}
	for i := range f.Enum().Values().Len() {
		v := f.Enum().Values().Get(i)
		n := int32(v.Number())
		if n == 0 || slices.Contains(allowed.GetNotIn(), n) || len(allowed.GetIn()) > 0 &&
			!slices.Contains(allowed.GetIn(), n) {
			continue // 0 is UNSPECIFIED: the default, if the field has one
		}
		names = append(names, string(v.Name()))
	}
	return names
}

// checkCall validates the request of a call. It leaves the items of a batch that is not all or nothing to the handler,
// because an invalid item does not fail the call.
func checkCall(m proto.Message) error {
	batch, ok := m.(interface{ GetAllOrNothing() bool })
	if !ok || batch.GetAllOrNothing() {
		return check(m)
	}
	r := m.ProtoReflect()
	if err := decodeError(m); err != nil {
		return err
	}
	if len(r.GetUnknown()) > 0 {
		return check(m)
	}
	return violationFault(m, protovalidate.Validate(m, protovalidate.WithFilter(protovalidate.FilterFunc(
		func(part protoreflect.Message, _ protoreflect.Descriptor) bool {
			return part.Descriptor() == r.Descriptor()
		}))))
}

// checkItem validates an item of a batch like a call of its own, its key first.
func checkItem(item *ledgerv1.TransferBatchItem) error {
	if key := item.GetIdempotencyKey(); key != "" {
		if _, err := ParseKey(key); err != nil {
			return err
		}
	}
	if item.GetTransfer() == nil || len(item.ProtoReflect().GetUnknown()) > 0 {
		return check(item)
	}
	return check(item.GetTransfer())
}

// findInvalid returns the path of the first field that no call may have: an unknown field, which may be a condition
// that a newer client relies on, or a string with NUL, which Postgres cannot store.
func findInvalid(m protoreflect.Message) (path, problem string) {
	path, problem = findInvalidField(m)
	return strings.TrimPrefix(path, "."), problem
}

// findInvalidField is findInvalid without trimming the dot in front of the path.
func findInvalidField(m protoreflect.Message) (path, problem string) {
	if b := m.GetUnknown(); len(b) > 0 {
		number, _, _ := protowire.ConsumeTag(b)
		return fmt.Sprintf(".%d", number), "this server does not know a field with this number"
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Kind() != protoreflect.StringKind && f.Kind() != protoreflect.MessageKind || !m.Has(f) {
			continue
		}
		switch v := m.Get(f); {
		case f.IsMap():
			path, problem = findInvalidPair(f, v.Map())
		case f.IsList():
			l := v.List()
			for i := 0; i < l.Len() && problem == ""; i++ {
				if path, problem = findInvalidValue(f, l.Get(i)); problem != "" {
					path = fmt.Sprintf("[%d]%s", i, path)
				}
			}
		default:
			path, problem = findInvalidValue(f, v)
		}
		if problem != "" && !hasBareValues(m) {
			path = "." + string(f.Name()) + path
		}
		if problem != "" {
			return path, problem
		}
	}
	return "", ""
}

// findInvalidPair is findInvalidField for a map.
func findInvalidPair(f protoreflect.FieldDescriptor, pairs protoreflect.Map) (path, problem string) {
	pairs.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		if path, problem = findInvalidValue(f.MapKey(), k.Value()); problem != "" {
			problem = "names " + problem
			return false
		}
		path, problem = findInvalidValue(f.MapValue(), v)
		if problem != "" && len(k.String()) <= maxKeyInPath {
			path = "." + k.String() + path
		}
		return problem == ""
	})
	return path, problem
}

// hasBareValues reports whether the fields of a message have no names in JSON.
func hasBareValues(m protoreflect.Message) bool {
	switch m.Descriptor().FullName() {
	case "google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue":
		return true
	}
	return false
}

func findInvalidValue(f protoreflect.FieldDescriptor, v protoreflect.Value) (path, problem string) {
	switch f.Kind() {
	case protoreflect.StringKind:
		if strings.IndexByte(v.String(), 0) >= 0 {
			return "", "must not contain a NUL character"
		}
	case protoreflect.MessageKind:
		return findInvalidField(v.Message())
	}
	return "", ""
}
