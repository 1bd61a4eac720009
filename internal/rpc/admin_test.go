package rpc_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/ledgerd/ledgerd/gen/ledgerd/admin/v1"
	auditv1 "github.com/ledgerd/ledgerd/gen/ledgerd/audit/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/paging"
)

// adminExamples are valid requests for the tenant "mine". The calls that only operators may make come last.
func adminExamples() []struct {
	name string
	m    proto.Message
} {
	limit := &adminv1.Limit{Channel: "sms", Scope: "tenant", Window: durationpb.New(time.Minute),
		MaxMessages: proto.Int32(5)}
	return []struct {
		name string
		m    proto.Message
	}{
		{"Admin.CreateKey", &adminv1.CreateKeyRequest{Principal: "p", Role: adminv1.Role_ROLE_READ}},
		{"Admin.RotateKey", &adminv1.RotateKeyRequest{KeyName: "x"}},
		{"Admin.RevokeKey", &adminv1.RevokeKeyRequest{KeyName: "x"}},
		{"Admin.ListKeys", &adminv1.ListKeysRequest{}},
		{"Admin.PutPolicy", &adminv1.PutPolicyRequest{Policy: &adminv1.Policy{Operation: "ledger.reverse"}}},
		{"Admin.ListPolicies", &adminv1.ListPoliciesRequest{}},
		{"Admin.DeletePolicy", &adminv1.DeletePolicyRequest{Operation: "ledger.reverse"}},
		{"Admin.PutLimit", &adminv1.PutLimitRequest{Limit: limit}},
		{"Admin.ListLimits", &adminv1.ListLimitsRequest{}},
		{"Admin.DeleteLimit", &adminv1.DeleteLimitRequest{Limit: limit}},
		{"Admin.CreateTenant", &adminv1.CreateTenantRequest{Name: "another"}},
		{"Admin.ListTenants", &adminv1.ListTenantsRequest{}},
	}
}

func TestOnlyAdministratorsAdminister(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	theirs := s.Key("theirs", "boss", access.Admin)
	for role, c := range map[access.Role]*caller{
		access.Read: {s, s.Key("mine", "reader", access.Read)}, access.Write: {s, s.Key("mine", "clerk", access.Write)},
		access.Admin:    {s, s.Key("mine", "boss", access.Admin)},
		access.Operator: {s, s.Key("operators", "op", access.Operator)},
	} {
		for i, x := range adminExamples() {
			if a := (&caller{site: s}).call(connectJSON, x.name, x.m); a.Code != "unauthenticated" {
				t.Errorf("%s without a key: %q", x.name, a.Code)
			}
			a := c.call(connectJSON, x.name, x.m)
			refused := a.Code == "permission_denied"
			if want := role < access.Admin || role == access.Admin && i >= 10; refused != want || a.Code == "internal" {
				t.Errorf("%v: %s: %q %s", role, x.name, a.Code, a.Message)
			}
			if f := x.m.ProtoReflect().Descriptor().Fields().ByName("tenant"); f != nil {
				m := proto.Clone(x.m)
				m.ProtoReflect().Set(f, f.Default())
				for _, tenant := range []string{"theirs", "nowhere"} {
					m.ProtoReflect().Set(f, protoText(tenant))
					a := c.call(connectJSON, x.name, m)
					if (a.Code == "permission_denied") != (role != access.Operator) {
						t.Errorf("%v: %s of %s: %q %s", role, x.name, tenant, a.Code, a.Message)
					}
				}
			}
		}
	}
	op := &caller{s, s.Key("operators", "op", access.Operator)}
	for name, m := range map[string]proto.Message{
		"ListAssets": &ledgerv1.ListAssetsRequest{}, "Transfer": pay("x", "a", "b", "1"),
	} {
		if a := op.call(connectJSON, name, m); a.Code != "permission_denied" {
			t.Errorf("an operator: %s: %q", name, a.Code)
		}
	}
	if (&caller{s, theirs}).call(connectJSON, "ListAssets", &ledgerv1.ListAssetsRequest{}).Code != "" {
		t.Error("a key of another tenant has ended")
	}
}

func TestKeysAreCreatedRotatedAndRevokedOverRPC(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	boss := &caller{s, s.Key("mine", "boss", access.Admin)}
	a := boss.call(connectProto, "Admin.CreateKey",
		&adminv1.CreateKeyRequest{Principal: "till", Role: adminv1.Role_ROLE_WRITE,
			Scopes: []string{"ledger.list_assets", "ledger.transfer(from=user:*)"}, CallRate: 100, CallLimit: 10})
	var made adminv1.CreateKeyResponse
	connectProto.Decode(t, a.Raw, &made)
	if a.Code != "" || a.Header.Get("Cache-Control") != "no-store" || made.GetKey().GetCreatedBy() != "mine/boss" {
		t.Fatalf("%s %s %v", a.Code, a.Message, a.Header)
	}
	till := &caller{s, made.GetApiKey()}
	list := func(c *caller) string { return c.call(connectJSON, "ListAssets", &ledgerv1.ListAssetsRequest{}).Code }
	if list(till) != "" || till.call(connectJSON, "TrialBalance",
		&ledgerv1.TrialBalanceRequest{}).Code != "permission_denied" {
		t.Error("the key has other rights")
	}
	own := boss.call(connectProto, "Admin.CreateKey",
		&adminv1.CreateKeyRequest{Principal: "deputy", Role: adminv1.Role_ROLE_ADMIN,
			ExpireTime: timestamppb.New(time.Now().Add(time.Hour).Truncate(time.Microsecond))})
	var deputy adminv1.CreateKeyResponse
	connectProto.Decode(t, own.Raw, &deputy)
	name, end := deputy.GetKey().GetKeyName(), deputy.GetKey().GetExpireTime()
	bounded := &caller{s, deputy.GetApiKey()}
	equal := bounded.call(connectProto, "Admin.CreateKey", &adminv1.CreateKeyRequest{Principal: "till2",
		Role: adminv1.Role_ROLE_READ, ExpireTime: end})
	if equal.Code != "" {
		t.Errorf("a key with the expiry of its maker: %s", equal.Message)
	}
	for what, m := range map[string]*adminv1.RotateKeyRequest{"no expiry": {KeyName: name},
		"a later one": {KeyName: name, ExpireTime: timestamppb.New(end.AsTime().Add(time.Microsecond))}} {
		for _, c := range []*caller{boss, bounded} {
			a := c.call(connectProto, "Admin.RotateKey", m)
			if allowed := c == boss && m.GetExpireTime() != nil; (a.Code == "") != allowed ||
				!allowed && !strings.HasPrefix(a.Message, "expire_time: must be set") {
				t.Errorf("rotated with %s: %s %s", what, a.Code, a.Message)
			}
		}
	}
	rotated := ok(boss, "Admin.RotateKey", &adminv1.RotateKeyRequest{KeyName: made.GetKey().GetKeyName(),
		Overlap: durationpb.New(time.Hour)}, new(adminv1.RotateKeyResponse))
	if next := (&caller{s, rotated.GetApiKey()}); list(next) != "" || list(till) != "" ||
		rotated.GetKey().GetScopes()[1] != "ledger.transfer(from=user:*)" ||
		rotated.GetOldKey().GetExpireTime() == nil {
		t.Errorf("%v", rotated)
	}
	ok(boss, "Admin.RevokeKey", &adminv1.RevokeKeyRequest{KeyName: made.GetKey().GetKeyName()},
		new(adminv1.RevokeKeyResponse))
	eventually(t, 20*time.Second, "the key ends", func() bool { return list(till) == "unauthenticated" })
	var ids []string
	for page, token := 0, ""; page == 0 || token != ""; page++ {
		res := ok(boss, "Admin.ListKeys", &adminv1.ListKeysRequest{PageSize: 2, PageToken: token},
			new(adminv1.ListKeysResponse))
		for _, k := range res.GetKeys() {
			ids = append(ids, k.GetPrincipal())
			if k.GetKeyName() == made.GetKey().GetKeyName() &&
				(k.GetRevokedBy() != "mine/boss" || k.GetRevokeTime() == nil) {
				t.Errorf("%v", k)
			}
		}
		token = res.GetNextPageToken()
	}
	if strings.Join(ids, " ") != "boss till deputy till2 deputy till" {
		t.Errorf("keys of %v", ids)
	}
	read := func(scopes ...string) *adminv1.CreateKeyRequest {
		return &adminv1.CreateKeyRequest{Principal: "x", Role: adminv1.Role_ROLE_READ, Scopes: scopes}
	}
	for problem, m := range map[string]*adminv1.CreateKeyRequest{
		"role: must be":                       {Principal: "x", Role: adminv1.Role_ROLE_OPERATOR},
		`scopes[0]: "nonsense"`:               read("nonsense"),
		`scopes[1]: "ledger.transfers(fr`:     read("ledger.get_*", "ledger.transfers(from=user:*)"),
		`scopes[0]: "bank.*" covers no`:       read("bank.*"),
		`scopes[0]: "ledger.get_account(form`: read("ledger.get_account(form=user:*)"),
		`scopes[0]: "ledger.transfer" covers`: read("ledger.transfer"),
		"expire_time: must": {Principal: "x", Role: adminv1.Role_ROLE_READ,
			ExpireTime: &timestamppb.Timestamp{Seconds: -62135596800}},
		"expire_time: is": {Principal: "x", Role: adminv1.Role_ROLE_READ,
			ExpireTime: &timestamppb.Timestamp{Seconds: 253402300800}},
	} {
		field, _, _ := strings.Cut(problem, ":")
		if a := boss.call(connectProto, "Admin.CreateKey", m); a.Code == "" || a.Fields(t)[0] != field ||
			!strings.HasPrefix(a.Message, problem) {
			t.Errorf("%s: %s %s", problem, a.Code, a.Message)
		}
	}
	for name, m := range map[string]proto.Message{
		"policies": &adminv1.ListPoliciesRequest{PageToken: paging.Of("admin.policies", boss.tenant()).TokenNumber(-1)},
		"keys": &adminv1.ListKeysRequest{PageToken: paging.Of("admin.keys",
			boss.tenant()).Token("-210866803200000001", "a")},
		"limits": &adminv1.ListLimitsRequest{PageToken: paging.Of("admin.limits", boss.tenant()).TokenNumber(-1)},
	} {
		call := "Admin.List" + strings.ToUpper(name[:1]) + name[1:]
		if a := boss.call(connectProto, call, m); a.Reason(t) != "PAGE_TOKEN_INVALID" {
			t.Errorf("a forged page of %s: %s %s", name, a.Code, a.Message)
		}
	}
	if a := boss.call(connectProto, "Admin.ListKeys", &adminv1.ListKeysRequest{}, "Idempotency-Key",
		"k"); a.Reason(t) !=
		"IDEMPOTENCY_KEY_UNSUPPORTED" {
		t.Errorf("with a key: %s", a.Code)
	}
}

func TestPoliciesAndLimitsAreSetOverRPC(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	boss := &caller{s, s.Key("mine", "boss", access.Admin)}
	ok(boss, "Admin.PutPolicy", &adminv1.PutPolicyRequest{Policy: &adminv1.Policy{Operation: "ledger.transfer",
		KeyRequired: true, KeyLife: durationpb.New(time.Hour)}}, new(adminv1.PutPolicyResponse))
	ok(boss, "Admin.PutPolicy", &adminv1.PutPolicyRequest{Policy: &adminv1.Policy{Operation: "*"}},
		new(adminv1.PutPolicyResponse))
	eventually(t, 20*time.Second, "the policy applies", func() bool {
		return boss.call(connectJSON, "Transfer", pay("x", "a", "b", "1")).Reason(t) == "IDEMPOTENCY_KEY_MISSING"
	})
	list := ok(boss, "Admin.ListPolicies", &adminv1.ListPoliciesRequest{PageSize: 1}, new(adminv1.ListPoliciesResponse))
	next := ok(boss, "Admin.ListPolicies", &adminv1.ListPoliciesRequest{PageSize: 1,
		PageToken: list.GetNextPageToken()},
		new(adminv1.ListPoliciesResponse))
	if p := next.GetPolicies()[0]; len(list.GetPolicies()) != 1 || p.GetOperation() != "ledger.transfer" ||
		p.GetKeyLife().GetSeconds() != 3600 || next.GetNextPageToken() != "" {
		t.Errorf("%v, %v", list, next)
	}
	ok(boss, "Admin.DeletePolicy", &adminv1.DeletePolicyRequest{Operation: "*"}, new(adminv1.DeletePolicyResponse))
	reverse := &adminv1.Policy{Operation: "ledger.reverse", ApprovalRequired: true, ApprovalAbove: "100.50"}
	ok(boss, "Admin.PutPolicy", &adminv1.PutPolicyRequest{Policy: reverse}, new(adminv1.PutPolicyResponse))
	list = ok(boss, "Admin.ListPolicies", &adminv1.ListPoliciesRequest{}, new(adminv1.ListPoliciesResponse))
	if p := list.GetPolicies()[0]; !p.GetApprovalRequired() || p.GetApprovalAbove() != "100.5" {
		t.Errorf("%v", p)
	}
	ok(boss, "Admin.PutPolicy", &adminv1.PutPolicyRequest{Policy: &adminv1.Policy{Operation: "ledger.reverse"}},
		new(adminv1.PutPolicyResponse))
	const before, after = "map[approval_above:100.5 approval_required:true key_required:false token_required:false]",
		"map[key_required:false token_required:false]"
	if got := boss.events(&auditv1.ListEventsRequest{Kind: auditv1.SettingKind_SETTING_KIND_POLICY,
		Name: "ledger.reverse"}); !slices.Equal(got,
		[]string{"policy ledger.reverse - > " + before, "policy ledger.reverse " + before + " > " + after}) {
		t.Errorf("the audit log has %q", got)
	}
	limit := &adminv1.Limit{Channel: "sms", Scope: "tenant", Window: durationpb.New(time.Minute),
		MaxMessages: proto.Int32(5)}
	ok(boss, "Admin.PutLimit", &adminv1.PutLimitRequest{Limit: limit}, new(adminv1.PutLimitResponse))
	if l := ok(boss, "Admin.ListLimits", &adminv1.ListLimitsRequest{},
		new(adminv1.ListLimitsResponse)).GetLimits(); len(l) != 1 ||
		!proto.Equal(l[0], limit) {
		t.Errorf("%v", l)
	}
	ok(boss, "Admin.DeleteLimit", &adminv1.DeleteLimitRequest{Limit: limit}, new(adminv1.DeleteLimitResponse))
	for want, x := range map[string]struct {
		name string
		m    proto.Message
	}{
		"POLICY_NOT_FOUND": {"Admin.DeletePolicy", &adminv1.DeletePolicyRequest{Operation: "*"}},
		"LIMIT_NOT_FOUND":  {"Admin.DeleteLimit", &adminv1.DeleteLimitRequest{Limit: limit}},
		"policy.approval_required": {"Admin.PutPolicy",
			&adminv1.PutPolicyRequest{Policy: &adminv1.Policy{Operation: "*", ApprovalRequired: true}}},
		"policy.approval_above": {"Admin.PutPolicy",
			&adminv1.PutPolicyRequest{Policy: &adminv1.Policy{Operation: "ledger.reverse", ApprovalAbove: "1"}}},
		"limit.channel": {"Admin.PutLimit", &adminv1.PutLimitRequest{Limit: &adminv1.Limit{Channel: "fax",
			Scope:  "tenant",
			Window: limit.GetWindow(), MaxMessages: limit.MaxMessages}}},
		"limit.scope": {"Admin.PutLimit", &adminv1.PutLimitRequest{Limit: &adminv1.Limit{Channel: "sms", Scope: "town",
			Window: limit.GetWindow(), MaxMessages: limit.MaxMessages}}},
		"limit.window": {"Admin.PutLimit", &adminv1.PutLimitRequest{Limit: &adminv1.Limit{Channel: "sms",
			Scope:  "tenant",
			Window: durationpb.New(0), MaxMessages: limit.MaxMessages}}},
		"limit.max_messages": {"Admin.PutLimit",
			&adminv1.PutLimitRequest{Limit: &adminv1.Limit{Channel: "sms", Scope: "tenant",
				Window: limit.GetWindow()}}},
		"policy.operation": {"Admin.PutPolicy",
			&adminv1.PutPolicyRequest{Policy: &adminv1.Policy{Operation: "ledger.nothing"}}},
		"policy.key_life": {"Admin.PutPolicy", &adminv1.PutPolicyRequest{Policy: &adminv1.Policy{Operation: "*",
			KeyLife: durationpb.New(1)}}},
		"limit": {"Admin.DeleteLimit", &adminv1.DeleteLimitRequest{}},
		"scopes[0]": {"Admin.CreateKey", &adminv1.CreateKeyRequest{Principal: "till", Role: adminv1.Role_ROLE_WRITE,
			Scopes: []string{"ledger.transfer(account=user:*)"}}}, // a field of conditions only
	} {
		a := boss.call(connectProto, x.name, x.m)
		if a.Code == "" || a.Reason(t) != want && (len(a.Fields(t)) == 0 || a.Fields(t)[0] != want) {
			t.Errorf("%s: %s %s %v", want, a.Code, a.Message, a.Fields(t))
		}
	}
}

func TestDeleteLimitRemovesNoOtherLimit(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	boss := &caller{s, s.Key("mine", "boss", access.Admin)}
	limit := func(window time.Duration) *adminv1.Limit {
		return &adminv1.Limit{Channel: "sms", Scope: "tenant", Window: durationpb.New(window),
			MaxMessages: proto.Int32(5)}
	}
	for _, kept := range []time.Duration{time.Second, time.Minute} {
		ok(boss, "Admin.PutLimit", &adminv1.PutLimitRequest{Limit: limit(kept)}, new(adminv1.PutLimitResponse))
	}
	for _, window := range []time.Duration{1500 * time.Millisecond, time.Minute + 1<<32*time.Second} {
		a := boss.call(connectJSON, "Admin.DeleteLimit", &adminv1.DeleteLimitRequest{Limit: limit(window)})
		if a.Reason(t) != "FIELD_INVALID" || !strings.HasPrefix(a.Message, "limit.window: ") {
			t.Errorf("%v: %s", window, a.Message)
		}
	}
	mails := &adminv1.Limit{Channel: "email", Scope: "prefix", Window: durationpb.New(time.Minute),
		MaxMessages: proto.Int32(5)}
	a := boss.call(connectJSON, "Admin.PutLimit", &adminv1.PutLimitRequest{Limit: mails})
	if !strings.HasPrefix(a.Message, "limit.scope: prefix counts phone numbers") {
		t.Error(a.Message)
	}
	if l := ok(boss, "Admin.ListLimits", &adminv1.ListLimitsRequest{},
		new(adminv1.ListLimitsResponse)).GetLimits(); len(l) != 2 {
		t.Errorf("%v", l)
	}
}

func protoText(s string) protoreflect.Value { return protoreflect.ValueOfString(s) }
