package rpc

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	adminv1 "github.com/ledgerd/ledgerd/gen/ledgerd/admin/v1"
	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	salev1 "github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// permit refuses a request that the caller's role or scopes do not cover. Requests within it, such as the items of a
// batch, need their own permission. The operations of an Execute are permitted when they are decoded. Returns fault
// PERMISSION_DENIED.
func (c *call) permit(m proto.Message) error {
	if problem := adminField(m); problem != "" && !c.identity.Role.Includes(access.Admin) {
		return access.PermissionDenied.New("%s: the caller's role is %s, this needs admin", problem, c.identity.Role).
			WithField(problem, "needs the role admin")
	}
	if c.identity.Scopes == nil {
		return nil
	}
	return c.permitScopes(m, c.identity.Scopes)
}

// permitScopes refuses a request that the caller's scopes do not cover.
func (c *call) permitScopes(m proto.Message, scopes *access.Scopes) error {
	if c.claim != nil {
		if err := scopes.Check(claimKeyOperation.name, claimValues(c.claim)); err != nil {
			return err
		}
	}
	p, ok := byRequest[m.ProtoReflect().Descriptor().FullName()]
	if !ok { // a request of gRPC reflection, which scopes do not restrict
		return nil
	}
	var found requestFields
	found.collect(m.ProtoReflect(), "")
	switch x := m.(type) {
	case *salev1.GrabManyRequest:
		p.operation = grabName
	case *batchv1.ExecuteRequest:
		if len(x.GetLockKeys()) == 0 {
			return nil
		}
	default:
		if len(found.inner) > 0 && slices.Contains(containers, p.operation) {
			return found.permitInner(scopes)
		}
	}
	if err := scopes.Check(p.operation, found.values); err != nil {
		return err
	}
	return found.permitInner(scopes)
}

// ParseScopes parses the scopes of a new key. Each must cover an operation that the role allows, and whose request has
// the fields of the scope: a misspelt one would cover none. Returns fault FIELD_INVALID.
func ParseScopes(role access.Role, texts []string) (*access.Scopes, error) {
	bad := func(field string, err error) error {
		return fault.InvalidField(field, "%v", err)
	}
	for i, text := range texts {
		field := fmt.Sprintf("scopes[%d]", i)
		one, err := access.ParseScopes([]string{text})
		if err != nil {
			return nil, bad(field, err)
		}
		covers := false
		for request, p := range byRequest {
			covers = covers || p.allows(role) && one.Covers(p.operation, fieldsForScopes[request])
		}
		if !covers {
			return nil, bad(field, fmt.Errorf("%q covers no call that the role %s allows: "+
				"there is no such operation, or its request has no such field",
				text, role))
		}
	}
	scopes, err := access.ParseScopes(texts)
	if err != nil {
		return nil, bad("scopes", err)
	}
	return scopes, nil
}

// fieldsForScopes are the names in scopes of the fields that a request can have.
var fieldsForScopes = func() map[protoreflect.FullName]map[string]bool {
	all := map[protoreflect.FullName]map[string]bool{}
	for request := range byRequest {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(request)
		if err != nil {
			panic(err) // byRequest has descriptors of this program
		}
		all[request] = map[string]bool{}
		addFields(d.(protoreflect.MessageDescriptor), all[request], map[protoreflect.FullName]bool{})
	}
	return all
}()

// addFields adds the names of the texts of a message, and of the messages within it.
func addFields(m protoreflect.MessageDescriptor, fields map[string]bool, met map[protoreflect.FullName]bool) {
	if met[m.FullName()] {
		return
	}
	met[m.FullName()] = true
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		switch {
		case f.IsMap():
		case f.Kind() == protoreflect.StringKind:
			fields[scopeField(f)] = true
		case f.Kind() == protoreflect.MessageKind && hasScopeFields(f.Message()):
			addFields(f.Message(), fields, met)
		}
	}
}

// hasScopeFields reports whether scopes may name texts within a message. They may not name those of a condition: a
// scope on `account` would seem to restrict whose money a transfer moves, but `from` and `to` do that.
func hasScopeFields(m protoreflect.MessageDescriptor) bool {
	name := m.FullName()
	return strings.HasPrefix(string(name), "ledgerd.") && name != "ledgerd.ledger.v1.Condition"
}

// scopeField is the name of a field in scopes.
func scopeField(f protoreflect.FieldDescriptor) string {
	if renamed := scopeFields[f.FullName()]; renamed != "" {
		return renamed
	}
	return string(f.Name())
}

// containers are operations that consist only of the operations within them.
var containers = []string{batchName, sendBatchName, "idempotency.claim_keys"}

// requireRoleOf is requireRole for the request of an operation of an Execute.
func (c *call) requireRoleOf(m proto.Message) error {
	return c.requireRole(byRequest[m.ProtoReflect().Descriptor().FullName()])
}

// requireRole returns fault PERMISSION_DENIED if the caller's role is too low.
func (c *call) requireRole(p permission) error {
	if !p.allows(c.identity.Role) {
		return access.PermissionDenied.New("the caller's role is %s, the call needs %s", c.identity.Role, p.role)
	}
	return nil
}

// adminField returns the path of the first field of a request that only an administrator may set, or "". Such a field
// sets or removes a limit of an account.
func adminField(m proto.Message) (field string) {
	switch r := m.(type) {
	case *ledgerv1.CreateAccountsRequest:
		for i, a := range r.GetAccounts() {
			if a.GetUnbounded() {
				return fmt.Sprintf("accounts[%d].unbounded", i)
			}
			if strings.HasPrefix(a.GetMinBalance(), "-") {
				return fmt.Sprintf("accounts[%d].min_balance", i)
			}
		}
	case *ledgerv1.UpdateAccountRequest:
		switch {
		case r.MinBalance != nil:
			return "min_balance"
		case r.GetUnbounded():
			return "unbounded"
		case r.MaxBalance != nil:
			return "max_balance"
		case r.GetClearMaxBalance():
			return "clear_max_balance"
		}
	}
	return ""
}

// requestFields are the texts of a request by field, and the requests within it.
type requestFields struct {
	fields map[string][]access.Value
	inner  []innerRequest
}

type innerRequest struct {
	permission
	requestFields
	path string // such as "items[2]."
}

func (r *requestFields) values(field string) []access.Value { return r.fields[field] }

func (r *requestFields) permitInner(scopes *access.Scopes) error {
	for i := range r.inner {
		x := &r.inner[i]
		if err := scopes.Check(x.operation, x.values); err != nil {
			if f := fault.Of(err); len(f.Fields) > 0 && !strings.HasPrefix(f.Fields[0].Path, x.path) { // missing
				err = fault.In(x.path, err)
			}
			return err
		}
		if err := x.permitInner(scopes); err != nil {
			return err
		}
	}
	return nil
}

// scopeFields are the names in scopes of fields that are named differently in requests.
var scopeFields = map[protoreflect.FullName]string{
	"ledgerd.ledger.v1.AccountRef.code":             "account",
	"ledgerd.ledger.v1.NewAccount.code":             "account",
	"ledgerd.ledger.v1.ListAccountsRequest.pattern": "account",
	"ledgerd.ledger.v1.ListBalancesRequest.pattern": "account",
	"ledgerd.ledger.v1.TrialBalanceRequest.pattern": "account",
	"ledgerd.ledger.v1.WatchEntriesRequest.pattern": "account",
	"ledgerd.stock.v1.ListItemsRequest.prefix":      "item",
	"ledgerd.lock.v1.ListLocksRequest.prefix":       "name",
}

// collect reads the texts of a message, and of the messages within it. Empty texts count as not set. Maps and
// contents of other types have no fields for scopes.
func (r *requestFields) collect(m protoreflect.Message, path string) {
	if r.fields == nil {
		r.fields = map[string][]access.Value{}
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := path + string(f.Name())
		switch {
		case f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				r.add(f, v.List().Get(i), fmt.Sprintf("%s[%d]", at, i))
			}
		default:
			r.add(f, v, at)
		}
		return true
	})
}

func (r *requestFields) add(f protoreflect.FieldDescriptor, v protoreflect.Value, at string) {
	switch f.Kind() {
	case protoreflect.StringKind:
		name, text := scopeField(f), v.String()
		if f.Name() == "prefix" && text != "" {
			text += "*" // a prefix matches all names that begin with it
		}
		if text != "" {
			r.fields[name] = append(r.fields[name], access.Value{Path: at, Text: text})
		}
	case protoreflect.MessageKind:
		if p, ok := byRequest[f.Message().FullName()]; ok {
			x := innerRequest{permission: p, path: at + "."}
			x.collect(v.Message(), at+".")
			r.inner = append(r.inner, x)
		} else if hasScopeFields(f.Message()) {
			r.collect(v.Message(), at+".")
		}
	}
}

// claimValues returns the values of the header Claim-Key, by field of a ClaimKeyRequest.
func claimValues(p *claim.Params) func(field string) []access.Value {
	texts := map[string]string{"scope": p.Scope, "key": p.Key, "owner": p.Owner}
	return func(field string) []access.Value {
		if texts[field] == "" {
			return nil
		}
		return []access.Value{{Path: ClaimHeader + "." + field, Text: texts[field]}}
	}
}

// permission is what a call needs: the name of its operation, for scopes, and the least role.
type permission struct {
	operation string
	role      access.Role
}

// The permissions of all calls, by procedure, and by the full name of the request: Execute and batches contain
// requests. Some requests need access.Admin besides: see adminField.
var byProcedure, byRequest = permissions()

func permissions() (byProcedure map[string]permission, byRequest map[protoreflect.FullName]permission) {
	byProcedure, byRequest = map[string]permission{}, map[protoreflect.FullName]permission{}
	for _, m := range calls() {
		service, name := string(m.Parent().FullName()), string(m.Name())
		p := permission{operationName(service, name), leastRole(m)}
		byProcedure["/"+service+"/"+name], byRequest[m.Input().FullName()] = p, p
	}
	return byProcedure, byRequest
}

// calls returns every call of the API.
func calls() (all []protoreflect.MethodDescriptor) {
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := 0; i < f.Services().Len() && strings.HasPrefix(string(f.Package()), "ledgerd."); i++ {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				all = append(all, methods.Get(j))
			}
		}
		return true
	})
	return all
}

// leastRole returns the role of the option least_role. Without the option a call needs access.Admin.
func leastRole(m protoreflect.MethodDescriptor) access.Role {
	if r := proto.GetExtension(m.Options(), adminv1.E_LeastRole).(adminv1.Role); r != 0 {
		return access.Role(r)
	}
	return access.Admin
}

// operationName returns the name of the operation of a call: ledgerd.order.v1.OrderService/CreateOrder is
// order.create_order.
func operationName(service, call string) string {
	var b strings.Builder
	b.WriteString(strings.Split(service, ".")[1] + ".")
	for i, r := range call {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// allows reports whether a role is enough. Operators may also make those calls of AdminService that need a lower role.
func (p permission) allows(r access.Role) bool {
	return r.Includes(p.role) || r == access.Operator && strings.HasPrefix(p.operation, "admin.")
}

// permissionOf returns what a procedure needs. Reflection describes the API to every caller. An unknown procedure needs
// access.Admin.
func permissionOf(procedure string) permission {
	if strings.HasPrefix(procedure, "/grpc.reflection.") {
		return permission{operation: "reflection", role: access.Read}
	}
	if p, ok := byProcedure[procedure]; ok {
		return p
	}
	return permission{role: access.Admin}
}
