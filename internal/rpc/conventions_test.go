package rpc

import (
	"slices"
	"strings"
	"testing"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// The rules of docs/api/conventions.md that a program can check.
func TestFieldsFollowTheConventions(t *testing.T) {
	t.Parallel()
	pages := 0
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if strings.HasPrefix(string(f.Package()), "ledgerd.") {
			for m := range messages(f.Messages()) {
				for i := range m.Fields().Len() {
					checkField(t, m, m.Fields().Get(i))
				}
				if m.Fields().ByName("page_size") != nil {
					pages++
					checkPages(t, m)
				}
			}
		}
		return true
	})
	if pages < 10 {
		t.Errorf("only %d requests have pages", pages)
	}
}

// messages yields messages and their nested messages.
func messages(ms protoreflect.MessageDescriptors) func(yield func(protoreflect.MessageDescriptor) bool) {
	return func(yield func(protoreflect.MessageDescriptor) bool) {
		for i := range ms.Len() {
			if !yield(ms.Get(i)) {
				return
			}
			messages(ms.Get(i).Messages())(yield)
		}
	}
}

func checkField(t *testing.T, m protoreflect.MessageDescriptor, f protoreflect.FieldDescriptor) {
	t.Helper()
	name, kind := string(f.Name()), f.Kind().String()
	if f.Message() != nil {
		kind = string(f.Message().FullName())
	}
	ofTime := strings.HasSuffix(name, "_time") || strings.HasSuffix(name, "_since") || name == "not_before" ||
		name == "time"
	if ofTime != (kind == "google.protobuf.Timestamp") {
		t.Errorf("%s is a %s", f.FullName(), kind)
	}
	for _, unit := range []string{"_ms", "_seconds", "_at", "_until"} {
		if strings.HasSuffix(name, unit) {
			t.Errorf("%s: names of times end in _time, durations have type Duration", f.FullName())
		}
	}
	// Ids assigned by other systems are text.
	text := strings.HasSuffix(name, "request_id") ||
		slices.Contains([]string{"provider_message_id", "transaction_id", "notify_id", "gateway_refund_id"}, name)
	if strings.HasSuffix(name, "_id") && kind != "int64" && !text &&
		!strings.HasPrefix(string(m.FullName()), "ledgerd.inbox.") {
		t.Errorf("%s is a %s", f.FullName(), kind)
	}
}

func checkPages(t *testing.T, m protoreflect.MessageDescriptor) {
	t.Helper()
	rules, _ := proto.GetExtension(m.Fields().ByName("page_size").Options(), validate.E_Field).(*validate.FieldRules)
	if r := rules.GetInt32(); !r.HasGte() || r.GetGte() != 0 || !r.HasLte() || r.GetLte() != 1000 {
		t.Errorf("%s.page_size is not limited to 0 through 1,000: %v", m.FullName(), rules)
	}
	answer, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(strings.TrimSuffix(string(m.
		FullName()), "Request") + "Response"))
	if err != nil || answer.(protoreflect.MessageDescriptor).Fields().ByName("next_page_token") == nil ||
		m.Fields().ByName("page_token") == nil {
		t.Errorf("%s has no page_token, or its response no next_page_token: %v", m.FullName(), err)
	}
}

// A misspelt or renamed field in these tables would have no effect, and cause no error.
func TestFieldsThatCodeNamesExist(t *testing.T) {
	t.Parallel()
	for name := range notContent {
		mustBeField(t, name)
	}
	for name := range scopeFields {
		mustBeField(t, name)
	}
}

func mustBeField(t *testing.T, name protoreflect.FullName) {
	t.Helper()
	if d, err := protoregistry.GlobalFiles.FindDescriptorByName(name); err != nil {
		t.Error(err)
	} else if _, ok := d.(protoreflect.FieldDescriptor); !ok {
		t.Errorf("%s is no field", name)
	}
}
