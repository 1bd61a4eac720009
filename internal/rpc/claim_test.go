package rpc_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
)

func (c *caller) claim(r *idempotencyv1.ClaimKeyRequest, headers ...string) *idempotencyv1.ClaimKeyResponse {
	c.T.Helper()
	return ok(c, "Idempotency.ClaimKey", r, new(idempotencyv1.ClaimKeyResponse), headers...)
}

func (c *caller) claimed(scope, key string) *idempotencyv1.Claim {
	c.T.Helper()
	return ok(c, "Idempotency.GetClaim", &idempotencyv1.GetClaimRequest{Scope: scope, Key: key},
		new(idempotencyv1.GetClaimResponse)).GetClaim()
}

func TestClaimCountIsReturnedOverEveryProtocol(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	for _, p := range protocols {
		tag := strings.ReplaceAll(p.Name, " ", "-")
		r := &idempotencyv1.ClaimKeyRequest{Key: tag, Owner: "ann", Result: "order-1", Life: durationpb.New(time.Hour)}
		for n := int64(1); n < 4; n++ {
			a, res := c.call(p, "Idempotency.ClaimKey", r, "X-Request-ID", fmt.Sprint(tag, n)),
				new(idempotencyv1.ClaimKeyResponse)
			p.Decode(t, a.Raw, res)
			x := res.GetClaim()
			if res.GetCount() != n || res.GetExisted() != (n > 1) || x.GetUses() != n || x.GetScope() != "page" ||
				x.GetKey() != tag || x.GetOwner() != "ann" ||
				x.GetResult() != "order-1" || x.GetRequestId() != tag+"1" || x.GetPrincipal() != "boss" ||
				x.GetExpireTime().AsTime().Sub(x.GetCreateTime().AsTime()) != time.Hour {
				t.Errorf("%s: %v", p.Name, res)
			}
		}
		r.FirstOnly = true
		a := c.call(p, "Idempotency.ClaimKey", r)
		if a.Code != "already_exists" || a.Reason(t) != "KEY_CLAIMED" || a.State("count") != "3" ||
			a.State("owner") != "ann" ||
			a.State("result") != "order-1" || a.State("first_request_id") != tag+"1" || a.State("first_time") == "" ||
			a.State("expire_time") == "" {
			t.Errorf("%s: %s %s %v", p.Name, a.Code, a.Message, a.Details)
		}
	}
	if lines := s.Log.With("msg", "call was a duplicate"); len(lines) != len(protocols) {
		t.Errorf("%d lines in the log", len(lines))
	}
	x := c.claim(&idempotencyv1.ClaimKeyRequest{Key: "default"}).GetClaim()
	if x.GetExpireTime().AsTime().Sub(x.GetCreateTime().AsTime()) != 10*time.Minute {
		t.Errorf("the life of a page is %v", x)
	}
	if x := c.claim(&idempotencyv1.ClaimKeyRequest{Scope: "phone", Key: "1"}).GetClaim(); x.ExpireTime != nil {
		t.Errorf("the claim of a phone number expires: %v", x)
	}
}

// A replay is not another use.
func TestReplayDoesNotCountAClaim(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	r := &idempotencyv1.ClaimKeyRequest{Key: "p"}
	for range 3 {
		if n := c.claim(r, "Idempotency-Key", "one").GetCount(); n != 1 {
			t.Errorf("counted %d", n)
		}
	}
	if n := c.claim(r, "Idempotency-Key", "two").GetCount(); n != 2 {
		t.Errorf("counted %d", n)
	}
	// A call guarded by a page id is replayed too, even though the page id is used up.
	for i := range 3 {
		a := c.call(connectJSON, "Transfer", payment("a", "5"), "Idempotency-Key", "pay", "Claim-Key",
			`"page-7"; first-only`)
		if a.Code != "" || a.Replayed() != (i > 0) || (i == 0) != (a.Header.Get("Claim-Count") == "1") {
			t.Errorf("call %d: %s %s, counted %q", i, a.Code, a.Message, a.Header.Get("Claim-Count"))
		}
	}
	if x := c.claimed("", "page-7"); x.GetUses() != 1 || x.GetResult() != "pay-a" {
		t.Errorf("%v", x)
	}
}

func TestClaimsGuardEveryMutation(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	header := func(kind string, x *replayCase) string {
		return fmt.Sprintf(`"%s-%s"; scope=g; owner="ann"; life=600; first-only`, kind, x.tag)
	}
	cases := replayCases(connectJSON, grpc)
	each(cases, func(x *replayCase) {
		c.prepareFor(x.name, x.tag)
		first := c.call(x.protocol, x.name, x.well(x.tag), "Claim-Key", header("guard", x))
		if x.name == "TransferBatch" && x.variant == "" {
			if first.Reason(t) != "FIELD_INVALID" {
				t.Errorf("independent items with a claim: %s", first.Code)
			}
			return
		}
		if first.Code != "" || first.Header.Get("Claim-Count") != "1" {
			t.Errorf("%s over %s: %s %s, counted %q", x.name, x.protocol.Name, first.Code, first.Message,
				first.Header.Get("Claim-Count"))
		}
	})
	cases = slices.DeleteFunc(cases, func(x *replayCase) bool { return x.name == "TransferBatch" && x.variant == "" })
	before := s.dump("mine")
	each(cases, func(x *replayCase) {
		for _, q := range protocols {
			again := c.call(q, x.name, x.well(x.tag), "Claim-Key", header("guard", x))
			if again.Code != "already_exists" || again.Reason(t) != "KEY_CLAIMED" ||
				again.State("owner") != "ann" || again.Header.Get("Claim-Count") != "" {
				t.Errorf("%s over %s, again: %s %s", x.name, q.Name, again.Code, again.Message)
			}
		}
	})
	wantSame(t, "the duplicates", before, s.dump("mine"))
	each(slices.DeleteFunc(cases, func(x *replayCase) bool { return x.refused == nil }), func(x *replayCase) {
		tag := x.tag + "r"
		c.prepareFor(x.name, tag)
		if a := c.call(x.protocol, x.name, x.refused(tag), "Claim-Key", header("refused", x)); a.Reason(t) != x.reason {
			t.Errorf("%s: %s", x.name, a.Message)
		}
		if a := c.call(x.protocol, x.name, x.well(tag), "Claim-Key",
			header("refused", x)); a.Reason(t) != "KEY_CLAIMED" ||
			a.State("result") != "" {
			t.Errorf("%s after a refusal: %s %s", x.name, a.Code, a.Message)
		}
	})
}

func TestHeadersOfClaims(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	before := s.dump("mine")
	for _, header := range []string{``, `"`, `""`, `"a`, `a b`, `"a";`, `"a"; scope`, `"a"; scope=1`,
		`"a"; scope="no spaces"`, `"a"; owner=?1`, `"a"; life="600"`,
		`"a"; life=0`, `"a"; life=-1`, `"a"; life=99999999`, `"a"; first-only=1`, `"a"; unknown`, `"a", "b"`, `12`,
		`?1`, `"ü"`, `%"%c3%bc%00"`, `%"%0a"`, `%"%C3%BC"`,
		`%"%ff"`, `"` + strings.Repeat("k", 1025) + `"`, `"a"; scope=` + strings.Repeat("s", 65)} {
		for _, p := range []protocol{connectJSON, grpc} {
			a := c.call(p, "Transfer", payment("a", "5"), "Claim-Key", header)
			if a.Code != "invalid_argument" || a.Reason(t) != "FIELD_INVALID" ||
				!strings.Contains(a.Message, "Claim-Key") {
				t.Errorf("%q over %s: %s %s", header, p.Name, a.Code, a.Message)
			}
		}
	}
	if a := c.call(connectJSON, "Transfer", payment("a", "5"), "Claim-Key", `"a"`, "Claim-Key",
		`"b"`); a.Reason(t) != "FIELD_INVALID" {
		t.Errorf("two claims: %s", a.Code)
	}
	for _, p := range protocols {
		if a := c.call(p, "GetBalance", &ledgerv1.GetBalanceRequest{Account: ref("u:a", "COIN")}, "Claim-Key",
			`"a"`); a.Reason(t) != "FIELD_INVALID" {
			t.Errorf("a read: %s", a.Code)
		}
	}
	for table, rows := range s.dump("mine") {
		if rows != before[table] {
			t.Errorf("%s changed", table)
		}
	}
	for i, x := range []struct {
		header string
		want   *idempotencyv1.Claim
		life   time.Duration
	}{
		{`"k-1"`, &idempotencyv1.Claim{Scope: "page", Key: "k-1"}, 10 * time.Minute},
		{`token:1/2`, &idempotencyv1.Claim{Scope: "page", Key: "token:1/2"}, 10 * time.Minute},
		{` "with \" and \\";scope=a.b-c:d;owner="who else";life=0.25;result="mine";first-only=?0 `,
			&idempotencyv1.Claim{Scope: "a.b-c:d", Key: `with " and \`, Owner: "who else", Result: "mine"},
			250 * time.Millisecond},
		{`%"%c3%bcmlaut %25"; scope="page"; first-only`, &idempotencyv1.Claim{Scope: "page", Key: "ümlaut %"},
			10 * time.Minute},
		{`"fact"; scope=like; owner=ann; owner=bob`, &idempotencyv1.Claim{Scope: "like", Key: "fact", Owner: "bob"}, 0},
	} {
		ok(c, "CreateAssets", &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: fmt.Sprint("H", i)}}},
			new(ledgerv1.CreateAssetsResponse), "Claim-Key", x.header)
		if n := s.Count(`select count(*) from claim_keys where scope = $1 and key = $2 and coalesce(owner, '') = $3
			and coalesce(result, '') = $4
			and coalesce(expires_at - claimed_at, '0') = $5`, x.want.GetScope(), x.want.GetKey(), x.want.GetOwner(),
			x.want.GetResult(), x.life); n != 1 {
			t.Errorf("%s: %d rows", x.header, n)
		}
	}
}

func TestClaimsInExecuteRunFirst(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	page := &idempotencyv1.ClaimKeyRequest{Key: "page-1", FirstOnly: true, Result: "n-1"}
	order := execute(operation("pay", pay("n-1", "u:a", "empty:a", "1")), operation("page", page))
	got, _ := c.executed(order)
	if got[1].(*idempotencyv1.ClaimKeyResponse).GetCount() != 1 {
		t.Errorf("%v", got)
	}
	order.Operations[0] = operation("pay", pay("n-2", "u:a", "empty:a", "1"))
	for range 2 {
		a := c.call(connectJSON, "Batch.Execute", order, "Idempotency-Key", "k")
		if a.Reason(t) != "KEY_CLAIMED" || a.State("operation_name") != "page" || a.State("result") != "n-1" ||
			a.Replayed() {
			t.Errorf("%s %s %v", a.Code, a.Message, a.Details)
		}
	}
	if b := c.balance("empty:a"); b != "1.00" {
		t.Errorf("paid %s", b)
	}
	// If the second of two claims fails, the first is undone. If an operation is refused, both survive.
	both := execute(operation("", &idempotencyv1.ClaimKeyRequest{Key: "page-2"}), operation("", page),
		operation("", pay("n-3", "u:a", "empty:a", "1000")))
	if a := c.call(connectJSON, "Batch.Execute", both); a.Reason(t) != "KEY_CLAIMED" {
		t.Errorf("%s", a.Code)
	}
	page.Key = "page-3"
	both.Operations[1] = operation("", page)
	if a := c.call(connectJSON, "Batch.Execute", both); a.Reason(t) != "INSUFFICIENT_FUNDS" {
		t.Errorf("%s", a.Code)
	}
	if x, y := c.claimed("", "page-2"), c.claimed("", "page-3"); x.GetUses() != 1 || y.GetUses() != 1 {
		t.Errorf("%v %v", x, y)
	}
	// Many claims, one of them refused, in one transaction with an effect.
	each := &idempotencyv1.ClaimKeysRequest{Claims: []*idempotencyv1.ClaimKeyRequest{{Key: "page-3", FirstOnly: true},
		{Key: "page-4"}}}
	got, existed := c.executed(execute(operation("", each), operation("", pay("n-4", "u:a", "empty:a", "1")),
		operation("fact", &idempotencyv1.ClaimKeyRequest{Scope: "taken", Key: "a", Owner: "somebody"}),
		operation("", &idempotencyv1.DropClaimRequest{Scope: "taken", Key: "a"}, "fence=fact:claim.fence")))
	if r := got[0].(*idempotencyv1.ClaimKeysResponse).GetResults(); r[0].GetReason() != "KEY_CLAIMED" ||
		r[0].GetClaim().GetKey() != "page-3" || r[1].GetCount() != 1 {
		t.Errorf("%v", r)
	}
	if !existed[2] || !got[3].(*idempotencyv1.DropClaimResponse).GetDropped() {
		t.Errorf("%v %v", existed, got)
	}
}

func TestDryRunsOfClaimsCountNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	before := s.dump("mine")
	dry := payment("a", "5")
	dry.DryRun = true
	for range 2 {
		if n := c.claim(&idempotencyv1.ClaimKeyRequest{Key: "p", DryRun: true}).GetCount(); n != 1 {
			t.Errorf("counted %d", n)
		}
		if a := c.call(grpc, "Transfer", dry, "Claim-Key", `"p"; first-only`); a.Code != "" ||
			a.Header.Get("Claim-Count") != "1" {
			t.Errorf("%s", a.Message)
		}
		ok(c, "Idempotency.ClaimKeys",
			&idempotencyv1.ClaimKeysRequest{Claims: []*idempotencyv1.ClaimKeyRequest{{Key: "p", FirstOnly: true}},
				DryRun: true},
			new(idempotencyv1.ClaimKeysResponse))
		c.executed(&batchv1.ExecuteRequest{Operations: execute(operation("",
			&idempotencyv1.ClaimKeyRequest{Key: "p", FirstOnly: true})).GetOperations(), DryRun: true})
		if d := ok(c, "Idempotency.DropClaim",
			&idempotencyv1.DropClaimRequest{Scope: "taken", Key: "a", Owner: "somebody", DryRun: true},
			new(idempotencyv1.DropClaimResponse)); !d.GetDropped() {
			t.Error("no claim was dropped")
		}
	}
	for table, rows := range s.dump("mine") {
		if rows != before[table] {
			t.Errorf("%s changed", table)
		}
	}
}

func TestClaimErrorsNameTheField(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	for want, r := range map[string]proto.Message{
		"key: must be set":                         &idempotencyv1.ClaimKeyRequest{},
		"key":                                      &idempotencyv1.ClaimKeyRequest{Key: strings.Repeat("ü", 513)},
		"key: must not contain control":            &idempotencyv1.ClaimKeyRequest{Key: "a\u2028b"},
		"owner: must not contain control":          &idempotencyv1.ClaimKeyRequest{Key: "a", Owner: "\u0085"},
		"result: must not contain control":         &idempotencyv1.ClaimKeyRequest{Key: "a", Result: "\n"},
		"parts: must not be set together with key": &idempotencyv1.ClaimKeyRequest{Key: "a", Parts: []string{"b"}},
		"parts[1]":                                 &idempotencyv1.ClaimKeyRequest{Parts: []string{"b", ""}},
		"scope":                                    &idempotencyv1.ClaimKeyRequest{Scope: "page/", Key: "a"},
		"life": &idempotencyv1.ClaimKeyRequest{Key: "a",
			Life: durationpb.New(time.Microsecond)},
		"claims[1].key": &idempotencyv1.ClaimKeysRequest{Claims: []*idempotencyv1.ClaimKeyRequest{{Key: "a"}, {}}},
		"claims[0].dry_run": &idempotencyv1.ClaimKeysRequest{Claims: []*idempotencyv1.ClaimKeyRequest{{Key: "a",
			DryRun: true}}},
		"fence: must be set": &idempotencyv1.DropClaimRequest{Key: "a"},
	} {
		name := strings.TrimSuffix(string(r.ProtoReflect().Descriptor().Name()), "Request")
		if a := c.call(connectProto, "Idempotency."+name, r); a.Reason(t) != "FIELD_INVALID" ||
			!strings.HasPrefix(a.Message, want) {
			t.Errorf("%s: %s %s", want, a.Code, a.Message)
		}
	}
	if a := c.call(connectJSON, "Idempotency.GetClaim",
		&idempotencyv1.GetClaimRequest{Key: "nobody"}); a.Code != "not_found" || a.Reason(t) != "CLAIM_NOT_FOUND" {
		t.Errorf("%s %s", a.Code, a.Message)
	}
}

func TestTenThousandKeysAreOneCommit(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	r := &idempotencyv1.ClaimKeysRequest{}
	for i := range 10_000 {
		r.Claims = append(r.Claims, &idempotencyv1.ClaimKeyRequest{Scope: "like",
			Parts: []string{"post-7", fmt.Sprint("user-", i)}, Owner: fmt.Sprint("user-", i)})
	}
	first := c.call(connectProto, "Idempotency.ClaimKeys", r, "Idempotency-Key", "k")
	again := c.call(connectProto, "Idempotency.ClaimKeys", r, "Idempotency-Key", "k")
	if first.Code != "" || string(first.Raw) != string(again.Raw) || !again.Replayed() {
		t.Fatalf("%s %s, replayed %v", first.Code, first.Message, again.Replayed())
	}
	if n := s.Count("select count(*) from claim_keys where uses = 1"); n != 10_000 {
		t.Errorf("%d keys", n)
	}
	if n := s.Count("select max(octet_length(answer)) from commit_keys"); n > 50_000 {
		t.Errorf("the record has %d bytes", n)
	}
	if n := s.Count("select count(distinct claim_id >> 14) from claim_keys"); n != 1 {
		t.Errorf("%d transactions", n)
	}
}

// A page is submitted a thousand times to two servers, without request keys.
func TestAPageSubmittedAThousandTimesOverTwoServersIsOneTransfer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	both := []*caller{c, c.second()}
	entries := s.Count("select count(*) from ledger_entries")
	var wg sync.WaitGroup
	var mu sync.Mutex
	ends := map[string]int{}
	for i := range 1000 {
		wg.Go(func() {
			r := payment("a", "0.01")
			r.BizNo = fmt.Sprint("submit-", i)
			a := both[i%2].call(connectJSON, "Transfer", r, "Claim-Key", `"goods-7-1763750000-8f3k"; first-only`)
			end := "ok"
			if a.Code != "" {
				end = a.Reason(t)
			}
			mu.Lock()
			defer mu.Unlock()
			ends[end]++
		})
	}
	wg.Wait()
	if ends["ok"] != 1 || ends["KEY_CLAIMED"] != 999 {
		t.Errorf("ended %v", ends)
	}
	if n := s.Count("select count(*) from ledger_entries"); n != entries+2 {
		t.Errorf("%d entries", n-entries)
	}
}
