package server_test

import (
	"fmt"
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
	"github.com/ledgerd/ledgerd/internal/server"
)

func (c *caller) claim(r *idempotencyv1.ClaimKeyRequest, headers ...string) *idempotencyv1.ClaimKeyResponse {
	c.t.Helper()
	return ok(c, "Idempotency.ClaimKey", r, new(idempotencyv1.ClaimKeyResponse), headers...)
}

func (c *caller) claimed(scope, key string) *idempotencyv1.Claim {
	c.t.Helper()
	return ok(c, "Idempotency.GetClaim", &idempotencyv1.GetClaimRequest{Scope: scope, Key: key},
		new(idempotencyv1.GetClaimResponse)).GetClaim()
}

func TestClaimsAreCountedAndToldOverEveryProtocol(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	for _, p := range protocols {
		tag := strings.ReplaceAll(p.name, " ", "-")
		r := &idempotencyv1.ClaimKeyRequest{Key: tag, Owner: "ann", Result: "order-1", Life: durationpb.New(time.Hour)}
		for n := int64(1); n < 4; n++ {
			a, res := c.call(p, "Idempotency.ClaimKey", r, "X-Request-ID", fmt.Sprint(tag, n)),
				new(idempotencyv1.ClaimKeyResponse)
			p.decode(t, a.raw, res)
			x := res.GetClaim()
			if res.GetCount() != n || res.GetExisted() != (n > 1) || x.GetUses() != n || x.GetScope() != "page" ||
				x.GetKey() != tag || x.GetOwner() != "ann" ||
				x.GetResult() != "order-1" || x.GetRequestId() != tag+"1" || x.GetPrincipal() != "boss" ||
				x.GetExpireTime().AsTime().Sub(x.GetCreateTime().AsTime()) != time.Hour {
				t.Errorf("%s: %v", p.name, res)
			}
		}
		r.FirstOnly = true
		a := c.call(p, "Idempotency.ClaimKey", r)
		if a.code != "already_exists" || a.reason(t) != "KEY_CLAIMED" || a.state("count") != "3" ||
			a.state("owner") != "ann" ||
			a.state("result") != "order-1" || a.state("first_request_id") != tag+"1" || a.state("first_time") == "" ||
			a.state("expire_time") == "" {
			t.Errorf("%s: %s %s %v", p.name, a.code, a.message, a.details)
		}
	}
	if lines := s.log.with("msg", "call was a duplicate"); len(lines) != len(protocols) {
		t.Errorf("%d lines in the log", len(lines))
	}
	if x := c.claim(&idempotencyv1.ClaimKeyRequest{Key: "default"}).GetClaim(); x.GetExpireTime().AsTime().Sub(x.GetCreateTime().AsTime()) != 10*time.Minute {
		t.Errorf("the life of a page is %v", x)
	}
	if x := c.claim(&idempotencyv1.ClaimKeyRequest{Scope: "phone", Key: "1"}).GetClaim(); x.ExpireTime != nil {
		t.Errorf("a phone has a life: %v", x)
	}
}

// A retry of one attempt counts once.
func TestARetryUnderItsKeyIsNotCounted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
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
	// What a page id guards replays too, though the page is used up.
	for i := range 3 {
		a := c.call(connectJSON, "Transfer", payment("a", "5"), "Idempotency-Key", "pay", "Claim-Key", `"page-7"; first-only`)
		if a.code != "" || a.replayed() != (i > 0) || (i == 0) != (a.header.Get("Claim-Count") == "1") {
			t.Errorf("call %d: %s %s, counted %q", i, a.code, a.message, a.header.Get("Claim-Count"))
		}
	}
	if x := c.claimed("", "page-7"); x.GetUses() != 1 || x.GetResult() != "pay-a" {
		t.Errorf("%v", x)
	}
}

func TestAClaimGuardsAnyChangingCall(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	n := 0
	for name, change := range changes {
		name, variant, _ := strings.Cut(name, " ")
		for _, p := range []protocol{connectJSON, grpc} {
			n++
			tag := fmt.Sprint("t", n)
			c.prepare(tag)
			header := fmt.Sprintf(`"guard-%s"; scope=g; owner="ann"; life=600; first-only`, tag)
			first := c.call(p, name, change.well(tag), "Claim-Key", header)
			if name == "TransferBatch" && variant == "" {
				if first.reason(t) != "FIELD_INVALID" {
					t.Errorf("independent items behind a claim: %s", first.code)
				}
				continue
			}
			if first.code != "" || first.header.Get("Claim-Count") != "1" {
				t.Errorf("%s over %s: %s %s, counted %q", name, p.name, first.code, first.message,
					first.header.Get("Claim-Count"))
			}
			before := s.dump("mine")
			for _, q := range protocols {
				again := c.call(q, name, change.well(tag), "Claim-Key", header)
				if again.code != "already_exists" || again.reason(t) != "KEY_CLAIMED" ||
					again.state("owner") != "ann" || again.header.Get("Claim-Count") != "" {
					t.Errorf("%s over %s, again: %s %s", name, q.name, again.code, again.message)
				}
			}
			for table, rows := range s.dump("mine") {
				if rows != before[table] {
					t.Errorf("%s: the duplicate changed %s", name, table)
				}
			}
			if change.refused == nil {
				continue
			}
			header = strings.Replace(header, "guard", "refused", 1)
			tag += "r"
			c.prepare(tag)
			if a := c.call(p, name, change.refused(tag), "Claim-Key", header); a.reason(t) != change.reason {
				t.Errorf("%s: %s", name, a.message)
			}
			if a := c.call(p, name, change.well(tag), "Claim-Key", header); a.reason(t) != "KEY_CLAIMED" ||
				a.state("result") != "" {
				t.Errorf("%s after a refusal: %s %s", name, a.code, a.message)
			}
		}
	}
}

func TestHeadersOfClaims(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	c.prepare("a")
	before := s.dump("mine")
	for _, header := range []string{``, `"`, `""`, `"a`, `a b`, `"a";`, `"a"; scope`, `"a"; scope=1`, `"a"; scope="no spaces"`, `"a"; owner=?1`, `"a"; life="600"`,
		`"a"; life=0`, `"a"; life=-1`, `"a"; life=99999999`, `"a"; first-only=1`, `"a"; unknown`, `"a", "b"`, `12`, `?1`, `"ü"`, `%"%c3%bc%00"`, `%"%0a"`, `%"%C3%BC"`,
		`%"%ff"`, `"` + strings.Repeat("k", 1025) + `"`, `"a"; scope=` + strings.Repeat("s", 65)} {
		for _, p := range []protocol{connectJSON, grpc} {
			a := c.call(p, "Transfer", payment("a", "5"), "Claim-Key", header)
			if a.code != "invalid_argument" || a.reason(t) != "FIELD_INVALID" ||
				!strings.Contains(a.message, "Claim-Key") {
				t.Errorf("%q over %s: %s %s", header, p.name, a.code, a.message)
			}
		}
	}
	if a := c.call(connectJSON, "Transfer", payment("a", "5"), "Claim-Key", `"a"`, "Claim-Key", `"b"`); a.reason(t) != "FIELD_INVALID" {
		t.Errorf("two claims: %s", a.code)
	}
	for _, p := range protocols {
		if a := c.call(p, "GetBalance", &ledgerv1.GetBalanceRequest{Account: ref("u:a", "COIN")}, "Claim-Key", `"a"`); a.reason(t) != "FIELD_INVALID" {
			t.Errorf("a read: %s", a.code)
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
			&idempotencyv1.Claim{Scope: "a.b-c:d", Key: `with " and \`, Owner: "who else", Result: "mine"}, 250 * time.Millisecond},
		{`%"%c3%bcmlaut %25"; scope="page"; first-only`, &idempotencyv1.Claim{Scope: "page", Key: "ümlaut %"}, 10 * time.Minute},
		{`"fact"; scope=like; owner=ann; owner=bob`, &idempotencyv1.Claim{Scope: "like", Key: "fact", Owner: "bob"}, 0},
	} {
		ok(c, "CreateAssets", &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: fmt.Sprint("H", i)}}},
			new(ledgerv1.CreateAssetsResponse), "Claim-Key", x.header)
		if n := s.count(`select count(*) from claim_keys where scope = $1 and key = $2 and coalesce(owner, '') = $3 and coalesce(result, '') = $4
			and coalesce(expires_at - claimed_at, '0') = $5`, x.want.GetScope(), x.want.GetKey(), x.want.GetOwner(), x.want.GetResult(), x.life); n != 1 {
			t.Errorf("%s: %d rows", x.header, n)
		}
	}
}

func TestClaimsInExecuteComeFirstAndFailTheWhole(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
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
		if a.reason(t) != "KEY_CLAIMED" || a.state("operation_name") != "page" || a.state("result") != "n-1" ||
			a.replayed() {
			t.Errorf("%s %s %v", a.code, a.message, a.details)
		}
	}
	if b := c.balance("empty:a"); b != "1.00" {
		t.Errorf("paid %s", b)
	}
	// Of two claims the first is given back when the second fails; when an operation is refused both stay.
	both := execute(operation("", &idempotencyv1.ClaimKeyRequest{Key: "page-2"}), operation("", page),
		operation("", pay("n-3", "u:a", "empty:a", "1000")))
	if a := c.call(connectJSON, "Batch.Execute", both); a.reason(t) != "KEY_CLAIMED" {
		t.Errorf("%s", a.code)
	}
	page.Key = "page-3"
	both.Operations[1] = operation("", page)
	if a := c.call(connectJSON, "Batch.Execute", both); a.reason(t) != "INSUFFICIENT_FUNDS" {
		t.Errorf("%s", a.code)
	}
	if x, y := c.claimed("", "page-2"), c.claimed("", "page-3"); x.GetUses() != 1 || y.GetUses() != 1 {
		t.Errorf("%v %v", x, y)
	}
	// Many at once, one of them refused, all in one transaction with an effect.
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
	c := &caller{s, s.key("mine", "boss", access.Write)}
	c.prepare("a")
	before := s.dump("mine")
	dry := payment("a", "5")
	dry.DryRun = true
	for range 2 {
		if n := c.claim(&idempotencyv1.ClaimKeyRequest{Key: "p", DryRun: true}).GetCount(); n != 1 {
			t.Errorf("counted %d", n)
		}
		if a := c.call(grpc, "Transfer", dry, "Claim-Key", `"p"; first-only`); a.code != "" || a.header.Get("Claim-Count") != "1" {
			t.Errorf("%s", a.message)
		}
		ok(c, "Idempotency.ClaimKeys", &idempotencyv1.ClaimKeysRequest{Claims: []*idempotencyv1.ClaimKeyRequest{{Key: "p", FirstOnly: true}}, DryRun: true},
			new(idempotencyv1.ClaimKeysResponse))
		c.executed(&batchv1.ExecuteRequest{Operations: execute(operation("",
			&idempotencyv1.ClaimKeyRequest{Key: "p", FirstOnly: true})).GetOperations(), DryRun: true})
		if d := ok(c, "Idempotency.DropClaim",
			&idempotencyv1.DropClaimRequest{Scope: "taken", Key: "a", Owner: "somebody", DryRun: true},
			new(idempotencyv1.DropClaimResponse)); !d.GetDropped() {
			t.Error("there was nothing to drop")
		}
	}
	for table, rows := range s.dump("mine") {
		if rows != before[table] {
			t.Errorf("%s changed", table)
		}
	}
}

func TestBadClaimsAreNamed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
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
		if a := c.call(connectProto, "Idempotency."+name, r); a.reason(t) != "FIELD_INVALID" ||
			!strings.HasPrefix(a.message, want) {
			t.Errorf("%s: %s %s", want, a.code, a.message)
		}
	}
	if a := c.call(connectJSON, "Idempotency.GetClaim",
		&idempotencyv1.GetClaimRequest{Key: "nobody"}); a.code != "not_found" || a.reason(t) != "CLAIM_NOT_FOUND" {
		t.Errorf("%s %s", a.code, a.message)
	}
}

func TestTenThousandKeysAreOneCommit(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	r := &idempotencyv1.ClaimKeysRequest{}
	for i := range 10_000 {
		r.Claims = append(r.Claims, &idempotencyv1.ClaimKeyRequest{Scope: "like",
			Parts: []string{"post-7", fmt.Sprint("user-", i)}, Owner: fmt.Sprint("user-", i)})
	}
	first := c.call(connectProto, "Idempotency.ClaimKeys", r, "Idempotency-Key", "k")
	again := c.call(connectProto, "Idempotency.ClaimKeys", r, "Idempotency-Key", "k")
	if first.code != "" || string(first.raw) != string(again.raw) || !again.replayed() {
		t.Fatalf("%s %s, replayed %v", first.code, first.message, again.replayed())
	}
	if n := s.count("select count(*) from claim_keys where uses = 1"); n != 10_000 {
		t.Errorf("%d keys", n)
	}
	if n := s.count("select max(octet_length(answer)) from commit_keys"); n > 50_000 {
		t.Errorf("the record has %d bytes", n)
	}
	if n := s.count("select count(distinct claim_id >> 14) from claim_keys"); n != 1 {
		t.Errorf("%d transactions", n)
	}
}

// Two servers, a page that is submitted a thousand times, no request keys.
func TestAPageSubmittedAThousandTimesOverTwoServersIsOneTransfer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	c.prepare("a")
	other := &site{t: t, db: s.db, pool: s.pool, log: s.log, fences: s.fences}
	other.start(server.Options{})
	both := []*caller{c, {other, c.apiKey}}
	entries := s.count("select count(*) from ledger_entries")
	var wg sync.WaitGroup
	var mu sync.Mutex
	ends := map[string]int{}
	for i := range 1000 {
		wg.Go(func() {
			r := payment("a", "0.01")
			r.BizNo = fmt.Sprint("submit-", i)
			a := both[i%2].call(connectJSON, "Transfer", r, "Claim-Key", `"goods-7-1763750000-8f3k"; first-only`)
			end := "ok"
			if a.code != "" {
				end = a.reason(t)
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
	if n := s.count("select count(*) from ledger_entries"); n != entries+2 {
		t.Errorf("%d entries", n-entries)
	}
}
