package rpc_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// freeText are the string fields that identify nothing: texts for people, contents, and values with a syntax of their
// own. The name is that of the field, or of the message and the field.
var freeText = map[string]bool{}

// nameFields returns the paths of fields to all strings of a message that are names.
func nameFields(m protoreflect.MessageDescriptor, above []protoreflect.FieldDescriptor) (found [][]protoreflect.FieldDescriptor) {
	if len(above) > 4 || strings.HasPrefix(string(m.FullName()), "google.") {
		return nil
	}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		path := append(append([]protoreflect.FieldDescriptor(nil), above...), f)
		switch {
		case f.IsMap():
		case f.Message() != nil:
			found = append(found, nameFields(f.Message(), path)...)
		case f.Kind() == protoreflect.StringKind && !freeText[string(f.Name())] && !freeText[string(m.Name())+"."+string(f.Name())]:
			found = append(found, path)
		}
	}
	return found
}

// set sets the string at a path, in the first element of each list.
func set(m protoreflect.Message, path []protoreflect.FieldDescriptor, text string) {
	f := path[0]
	switch value := protoreflect.ValueOfString(text); {
	case len(path) == 1 && f.IsList():
		if list := m.Mutable(f).List(); list.Len() == 0 {
			list.Append(value)
		} else {
			list.Set(0, value)
		}
	case len(path) == 1:
		m.Set(f, value)
	case f.IsList():
		list := m.Mutable(f).List()
		if list.Len() == 0 {
			list.AppendMutable()
		}
		set(list.Get(0).Message(), path[1:], text)
	default:
		set(m.Mutable(f).Message(), path[1:], text)
	}
}

// Two names that look alike must be equal: every string of every request that identifies something refuses characters
// that cannot be seen, and text that can be written in two ways.
func TestEveryNameIsVisibleAndNormal(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c, mine := createResources(s, "mine")
	fields := 0
	for _, m := range methods(t) {
		if m.IsStreamingServer() {
			continue
		}
		for _, path := range nameFields(m.Input(), nil) {
			fields++
			last := path[len(path)-1]
			for what, text := range map[string]string{"U+202E": "a\u202eb", "U+200B": "a\u200bb", "U+0000": "a\x00b",
				"U+0007": "a\ab", "not NFC": "Zoe\u0308"} {
				request := proto.Clone(examples[callName(m)](mine)[0])
				set(request.ProtoReflect(), path, text)
				a := c.call(connectJSON, callName(m), request)
				if a.Code != "invalid_argument" || !strings.Contains(string(a.Raw), last.JSONName()) {
					t.Errorf("%s %v.%s with %s: %q %s", callName(m), last.Parent().Name(), last.Name(), what, a.Code, a.Message)
				}
			}
		}
	}
	if fields < 100 {
		t.Errorf("only %d fields are names", fields)
	}
}
