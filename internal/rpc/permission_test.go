package rpc

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	adminv1 "github.com/ledgerd/ledgerd/gen/ledgerd/admin/v1"
	"github.com/ledgerd/ledgerd/internal/access"
)

// TestEveryCallHasAPermission fails when a call is added without one.
func TestEveryCallHasAPermission(t *testing.T) {
	t.Parallel()
	operationsOf := map[string]protoreflect.FullName{}
	requests := map[protoreflect.FullName]bool{}
	for _, m := range calls() {
		p := byRequest[m.Input().FullName()]
		if !proto.HasExtension(m.Options(), adminv1.E_LeastRole) {
			t.Errorf("%s has no option least_role", m.FullName())
			continue
		}
		if other := operationsOf[p.operation]; other != "" {
			t.Errorf("%s and %s are both %s", m.FullName(), other, p.operation)
		}
		operationsOf[p.operation] = m.FullName()
		if requests[m.Input().FullName()] {
			t.Errorf("%s is the request of two calls", m.Input().FullName())
		}
		requests[m.Input().FullName()] = true
		if _, err := access.ParseScope(p.operation); err != nil {
			t.Errorf("%s: %v", m.FullName(), err)
		}
		reads := m.Options().(*descriptorpb.MethodOptions).GetIdempotencyLevel() ==
			descriptorpb.MethodOptions_NO_SIDE_EFFECTS
		if p.role == access.Read && !reads || p.role == access.Write && reads {
			t.Errorf("%s: reads: %v, but it needs the role %v", m.FullName(), reads, p.role)
		}
	}
	for request, o := range operations {
		if p := byRequest[request]; p.operation != o.name {
			t.Errorf("%s is %s in an Execute, and %q as a call", request, o.name, p.operation)
		}
	}
	for _, name := range append(Operations(), containers...) {
		if operationsOf[name] == "" {
			t.Errorf("%s is the operation of no call", name)
		}
	}
}

func TestPermissionOfUnknownProcedures(t *testing.T) {
	t.Parallel()
	for procedure, want := range map[string]access.Role{
		"/ledgerd.ledger.v1.LedgerService/GetAccount":               access.Read,
		"/ledgerd.ledger.v1.LedgerService/Transfer":                 access.Write,
		"/ledgerd.ledger.v1.LedgerService/Nothing":                  access.Admin,
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": access.Read,
		"/other.v1.Service/Read":                                    access.Admin,
		"":                                                          access.Admin,
		"/ledgerd.notify.v1.WebhookService/GetSecret":               access.Admin,
	} {
		if got := permissionOf(procedure).role; got != want {
			t.Errorf("%s: %v", procedure, got)
		}
	}
}

// TestEveryRequestShowsItsTexts sets every text of every request: scopes must see each, except those of conditions.
func TestEveryRequestShowsItsTexts(t *testing.T) {
	t.Parallel()
	texts := 0
	for name := range byRequest {
		typ, err := protoregistry.GlobalTypes.FindMessageByName(name)
		if err != nil {
			t.Fatal(err)
		}
		m := typ.New()
		want := fillTexts(m, 0)
		var found requestFields
		found.collect(m, "")
		got := found.texts()
		if slices.Sort(want); !slices.Equal(got, want) {
			t.Errorf("%s has %v, scopes see %v", name, want, got)
		}
		texts += len(want)
	}
	if texts < 200 {
		t.Errorf("only %d texts", texts)
	}
}

// texts returns the texts of all fields, sorted.
func (r *requestFields) texts() (all []string) {
	for _, values := range r.fields {
		for _, v := range values {
			all = append(all, strings.TrimSuffix(v.Text, "*"))
		}
	}
	for i := range r.inner {
		all = append(all, r.inner[i].texts()...)
	}
	slices.Sort(all)
	return all
}

// fillTexts sets all texts of a message to their paths, two in lists, and returns them.
func fillTexts(m protoreflect.Message, depth int) (all []string) {
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		if f.IsMap() || depth > 6 || f.ContainingOneof() != nil && m.WhichOneof(f.ContainingOneof()) != nil {
			continue
		}
		text := protoreflect.ValueOfString(string(f.FullName()))
		switch message := f.Kind() == protoreflect.MessageKind && f.Message().Name() != "Condition" &&
			strings.HasPrefix(string(f.Message().FullName()), "ledgerd."); {
		case f.Kind() == protoreflect.StringKind && f.IsList():
			m.Mutable(f).List().Append(text)
			all = append(all, text.String())
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, text)
			all = append(all, text.String())
		case message && f.IsList():
			all = append(all, fillTexts(m.Mutable(f).List().AppendMutable().Message(), depth+1)...)
		case message:
			all = append(all, fillTexts(m.Mutable(f).Message(), depth+1)...)
		}
	}
	return all
}
