package server_test

import (
	"bytes"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	errorsv1 "github.com/ledgerd/ledgerd/gen/ledgerd/errors/v1"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	lockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server"
)

// change is one changing call in a world made for it under a tag: what goes well, and what is refused.
type change struct {
	well    func(tag string) proto.Message
	refused func(tag string) proto.Message // nil: no business rule refuses it
	reason  string
}

// maps have no order of their own
var manyNames = map[string]string{"one": "1", "two": "2", "three": "3", "four": "4", "five": "5"}

func payment(tag, amount string) *ledgerv1.TransferRequest {
	return &ledgerv1.TransferRequest{BizNo: "pay-" + tag, Metadata: manyNames,
		Postings: posting("u:"+tag, "world", "COIN", amount)}
}

func batch(tag, amount string, together bool) *ledgerv1.TransferBatchRequest {
	other := payment(tag, "1")
	other.BizNo = "other-" + tag
	return &ledgerv1.TransferBatchRequest{AllOrNothing: together,
		Items: []*ledgerv1.TransferBatchItem{{Transfer: other}, {Transfer: payment(tag, amount)}}}
}

// changes are the changing methods; TransferBatch is there twice.
var changes = map[string]change{
	"CreateAssets": {well: func(tag string) proto.Message {
		return &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "A" + tag, Scale: 3}, {Code: "B" + tag}}}
	}},
	"CreateAccounts": {reason: "LIMIT_VIOLATED", well: func(tag string) proto.Message {
		return &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{{Code: "new:" + tag, Asset: "COIN",
			Metadata: manyNames}}}
	}, refused: func(tag string) proto.Message {
		return &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{{Code: "new:" + tag, Asset: "COIN",
			MinBalance: proto.String("5")}}}
	}},
	"UpdateAccount": {reason: "LIMIT_VIOLATED", well: func(tag string) proto.Message {
		return &ledgerv1.UpdateAccountRequest{Account: ref("u:"+tag, "COIN"), MaxBalance: proto.String("5000"),
			Metadata: manyNames}
	}, refused: func(tag string) proto.Message {
		return &ledgerv1.UpdateAccountRequest{Account: ref("u:"+tag, "COIN"), MaxBalance: proto.String("1")}
	}},
	"FreezeAccount": {reason: "ACCOUNT_CLOSED", well: func(tag string) proto.Message {
		return &ledgerv1.FreezeAccountRequest{Account: ref("u:"+tag, "COIN")}
	}, refused: func(tag string) proto.Message {
		return &ledgerv1.FreezeAccountRequest{Account: ref("closed:"+tag, "COIN")}
	}},
	"UnfreezeAccount": {reason: "ACCOUNT_CLOSED", well: func(tag string) proto.Message {
		return &ledgerv1.UnfreezeAccountRequest{Account: ref("u:"+tag, "COIN")}
	}, refused: func(tag string) proto.Message {
		return &ledgerv1.UnfreezeAccountRequest{Account: ref("closed:"+tag, "COIN")}
	}},
	"CloseAccount": {reason: "ACCOUNT_NOT_EMPTY", well: func(tag string) proto.Message {
		return &ledgerv1.CloseAccountRequest{Account: ref("empty:"+tag, "COIN")}
	}, refused: func(tag string) proto.Message {
		return &ledgerv1.CloseAccountRequest{Account: ref("u:"+tag, "COIN")}
	}},
	"Transfer": {reason: "INSUFFICIENT_FUNDS", well: func(tag string) proto.Message { return payment(tag, "5.5") },
		refused: func(tag string) proto.Message { return payment(tag, "1000") }},
	"TransferBatch": {well: func(tag string) proto.Message { return batch(tag, "5", false) }},
	"TransferBatch together": {reason: "INSUFFICIENT_FUNDS",
		well:    func(tag string) proto.Message { return batch(tag, "5", true) },
		refused: func(tag string) proto.Message { return batch(tag, "1000", true) }},
	"Reverse": {reason: "INSUFFICIENT_FUNDS", well: func(tag string) proto.Message {
		return &ledgerv1.ReverseRequest{BizNo: "undo-" + tag, Metadata: manyNames,
			Target: &ledgerv1.ReverseRequest_TransferBizNo{TransferBizNo: "fund-" + tag}}
	}, refused: func(tag string) proto.Message {
		return &ledgerv1.ReverseRequest{BizNo: "undo-" + tag,
			Target: &ledgerv1.ReverseRequest_TransferBizNo{TransferBizNo: "spent-" + tag}}
	}},
	"Hold": {reason: "INSUFFICIENT_FUNDS", well: func(tag string) proto.Message {
		return &ledgerv1.HoldRequest{BizNo: "keep-" + tag, From: "u:" + tag, To: "world", Asset: "COIN", Amount: "2",
			Metadata: manyNames}
	}, refused: func(tag string) proto.Message {
		return &ledgerv1.HoldRequest{BizNo: "keep-" + tag, From: "u:" + tag, To: "world", Asset: "COIN", Amount: "1000"}
	}},
	"Capture": {reason: "CAPTURE_EXCEEDS_HOLD", well: func(tag string) proto.Message {
		return &ledgerv1.CaptureRequest{BizNo: "take-" + tag, Amount: "3", Metadata: manyNames,
			Hold: &ledgerv1.CaptureRequest_HoldBizNo{HoldBizNo: "hold-" + tag}}
	}, refused: func(tag string) proto.Message {
		return &ledgerv1.CaptureRequest{BizNo: "take-" + tag, Amount: "1000",
			Hold: &ledgerv1.CaptureRequest_HoldBizNo{HoldBizNo: "hold-" + tag}}
	}},
	"Batch.Execute": {reason: "INSUFFICIENT_FUNDS", well: func(tag string) proto.Message {
		return execute(operation("one", payment(tag, "5.5")), operation("", keep("keep-"+tag, "u:"+tag, "world", "2")))
	}, refused: func(tag string) proto.Message {
		return execute(operation("", keep("keep-"+tag, "u:"+tag, "world", "2")), operation("", payment(tag, "1000")))
	}},
	"Idempotency.SpendToken": {well: func(tag string) proto.Message {
		return &idempotencyv1.SpendTokenRequest{Token: "st_" + tag, Subject: "user:" + tag, Result: tag}
	}},
	"Idempotency.ClaimKey": {well: func(tag string) proto.Message {
		return &idempotencyv1.ClaimKeyRequest{Key: "page-" + tag, Owner: "me", Result: "pay-" + tag}
	}},
	"Idempotency.ClaimKeys": {well: func(tag string) proto.Message {
		return &idempotencyv1.ClaimKeysRequest{Claims: []*idempotencyv1.ClaimKeyRequest{{Key: "page-" + tag},
			{Key: "page-" + tag, FirstOnly: true},
			{Scope: "taken", Key: tag, Owner: "me"}, {Scope: "like", Parts: []string{"post", tag}}}}
	}},
	"Idempotency.DropClaim": {reason: "CLAIM_FOREIGN", well: func(tag string) proto.Message {
		return &idempotencyv1.DropClaimRequest{Scope: "taken", Key: tag, Owner: "somebody"}
	}, refused: func(tag string) proto.Message {
		return &idempotencyv1.DropClaimRequest{Scope: "taken", Key: tag, Owner: "me"}
	}},
	"Lock.Acquire": {well: func(tag string) proto.Message {
		return &lockv1.AcquireRequest{Name: "free-" + tag, Holder: "me"}
	}},
	"Lock.Renew": {reason: "LOCK_LOST", well: func(tag string) proto.Message {
		return &lockv1.RenewRequest{Name: "lock-" + tag} // the fence is put in when it is sent
	}, refused: func(tag string) proto.Message {
		return &lockv1.RenewRequest{Name: "lock-" + tag, Fence: 1 << 60}
	}},
	"Lock.Release": {reason: "LOCK_LOST", well: func(tag string) proto.Message {
		return &lockv1.ReleaseRequest{Name: "lock-" + tag}
	}, refused: func(tag string) proto.Message {
		return &lockv1.ReleaseRequest{Name: "lock-" + tag, Fence: 1 << 60}
	}},
	"Release": {reason: "HOLD_NOT_HELD", well: func(tag string) proto.Message {
		return &ledgerv1.ReleaseRequest{Hold: &ledgerv1.ReleaseRequest_HoldBizNo{HoldBizNo: "hold-" + tag}}
	}, refused: func(tag string) proto.Message {
		return &ledgerv1.ReleaseRequest{Hold: &ledgerv1.ReleaseRequest_HoldBizNo{HoldBizNo: "over-" + tag}}
	}},
}

// prepare makes the world of a tag: 90 COIN available of 100, 10 held, the submit token st_ and the tag, such as no
// server would issue, a key that is somebody's, and a lock.
func (c *caller) prepare(tag string) {
	c.t.Helper()
	if _, err := c.pool.Exec(c.t.Context(), `insert into token_submit_tokens (tenant_id, token_hash, subject, life_ms, survives_refusal, principal,
			request_id, issued_at, expires_at, forget_at)
		values ($1::text::integer, sha256($2), $3, 3600000, false, 'boss', 'prepare', now(), now() + interval '1 h', now() + interval '2 h')`,
		strings.Split(c.apiKey, "_")[1], []byte("st_"+tag), "user:"+tag); err != nil {
		c.t.Fatal(err)
	}
	ok(c, "CreateAssets", &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "COIN", Scale: 2}}},
		new(ledgerv1.CreateAssetsResponse))
	ok(c, "CreateAccounts", &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{{Code: "world",
		Asset: "COIN", Unbounded: true},
		{Code: "u:" + tag, Asset: "COIN"}, {Code: "empty:" + tag, Asset: "COIN"},
		{Code: "closed:" + tag, Asset: "COIN"},
		{Code: "spent:" + tag, Asset: "COIN"}}}, new(ledgerv1.CreateAccountsResponse))
	ok(c, "CloseAccount", &ledgerv1.CloseAccountRequest{Account: ref("closed:"+tag, "COIN")},
		new(ledgerv1.CloseAccountResponse))
	move := func(bizNo, from, to, n string) *ledgerv1.TransferBatchItem {
		return &ledgerv1.TransferBatchItem{Transfer: &ledgerv1.TransferRequest{BizNo: bizNo + "-" + tag,
			Postings: posting(from, to, "COIN", n)}}
	}
	ok(c, "TransferBatch", &ledgerv1.TransferBatchRequest{AllOrNothing: true, Items: []*ledgerv1.TransferBatchItem{
		move("base", "world", "u:"+tag, "50"), move("fund", "world", "u:"+tag, "50"), move("spent", "world",
			"spent:"+tag, "7"),
		move("gone", "spent:"+tag, "world", "7")}}, new(ledgerv1.TransferBatchResponse))
	for _, bizNo := range []string{"hold-", "over-"} {
		ok(c, "Hold", &ledgerv1.HoldRequest{BizNo: bizNo + tag, From: "u:" + tag, To: "world", Asset: "COIN",
			Amount: "5"}, new(ledgerv1.HoldResponse))
	}
	fence := ok(c, "Lock.Acquire", &lockv1.AcquireRequest{Name: "lock-" + tag},
		new(lockv1.AcquireResponse)).GetLock().GetFence()
	c.fences.Store("lock-"+tag, fence)
	ok(c, "Capture", &ledgerv1.CaptureRequest{BizNo: "all-" + tag,
		Hold: &ledgerv1.CaptureRequest_HoldBizNo{HoldBizNo: "over-" + tag}}, new(ledgerv1.CaptureResponse))
	ok(c, "Idempotency.ClaimKey", &idempotencyv1.ClaimKeyRequest{Scope: "taken", Key: tag, Owner: "somebody"},
		new(idempotencyv1.ClaimKeyResponse))
	c.prepareWork(tag)
	for _, more := range preparers {
		more(c, tag)
	}
}

// preparers add what the changes of other services need.
var preparers []func(c *caller, tag string)

func TestEveryChangingMethodIsHere(t *testing.T) {
	for _, m := range methods(t) {
		if m.IsStreamingServer() {
			continue // cannot be answered from a record
		}
		if _, found := changes[callName(m)]; found == (reads(m) || recordsNothing(m)) {
			t.Errorf("%s: found %v", m.Name(), found)
		}
	}
}

// Calls that record nothing have no answer to give again, and say so instead of taking a key.
func TestCallsThatRecordNothingTakeNoKey(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c, mine := furnish(s, "mine")
	n := 0
	for _, m := range methods(t) {
		if !recordsNothing(m) {
			continue
		}
		for _, r := range examples[callName(m)](mine) {
			for _, p := range protocols {
				n++
				before := s.dump("mine")
				if a := c.call(p, callName(m), r, "Idempotency-Key", "key"); a.code != "invalid_argument" ||
					a.reason(t) != "IDEMPOTENCY_KEY_UNSUPPORTED" {
					t.Errorf("%s over %s with a key: %s %s", m.FullName(), p.name, a.code, a.message)
				}
				first, again := c.call(p, callName(m), r), c.call(p, callName(m), r)
				if first.code != "" || again.code != "" || first.replayed() || again.replayed() {
					t.Errorf("%s over %s: %s, again: %s", m.FullName(), p.name, first.message, again.message)
				}
				after := s.dump("mine")
				delete(before, "token_submit_tokens") // tokens are given out, as ids are, and end by themselves
				delete(after, "token_submit_tokens")
				if !maps.Equal(before, after) {
					t.Errorf("%s over %s left something", m.FullName(), p.name)
				}
			}
		}
	}
	if n == 0 {
		t.Error("there is no such call")
	}
}

func TestAnswersComeBackByteForByte(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	n := 0
	for name, change := range changes {
		name, _, _ := strings.Cut(name, " ")
		for _, p := range protocols {
			n++
			tag := fmt.Sprint("t", n)
			c.prepare(tag)
			key := "Idempotency-Key"
			first := c.call(p, name, change.well(tag), key, tag)
			if first.code != "" || first.replayed() || len(first.raw) == 0 {
				t.Errorf("%s over %s: %s %s, replayed %v", name, p.name, first.code, first.message, first.replayed())
			}
			entries := s.count("select count(*) from ledger_entries")
			again := c.call(p, name, change.well(tag), key, `"`+tag+`"`)
			if !bytes.Equal(first.raw, again.raw) || !again.replayed() {
				t.Errorf("%s over %s, again: replayed %v\n%q\n%q", name, p.name, again.replayed(), first.raw, again.raw)
			}
			if now := s.count("select count(*) from ledger_entries"); now != entries {
				t.Errorf("%s over %s happened twice", name, p.name)
			}
			for _, q := range protocols { // the same message, however it is asked for
				res, want := fill(t, method(t, name)), fill(t, method(t, name))
				p.decode(t, first.raw, want)
				q.decode(t, c.call(q, name, change.well(tag), key, tag).raw, res)
				if !proto.Equal(res, want) {
					t.Errorf("%s first over %s, then over %s:\n%v\n%v", name, p.name, q.name, want, res)
				}
			}
			other := c.call(p, name, change.well(tag+"x"), key, tag)
			if name == "TransferBatch" && other.code == "" {
				res := new(ledgerv1.TransferBatchResponse)
				p.decode(t, other.raw, res)
				for _, r := range res.GetResults() {
					if r.GetError().GetReason() != "IDEMPOTENCY_KEY_REUSED" ||
						r.GetError().GetDetail().GetClass() != errorsv1.ErrorClass_ERROR_CLASS_BAD_REQUEST {
						t.Errorf("%s with other content: %v", name, r)
					}
				}
			} else if other.code != "already_exists" || other.reason(t) != "IDEMPOTENCY_KEY_REUSED" {
				t.Errorf("%s over %s with other content: %s %s", name, p.name, other.code, other.message)
			}
		}
	}
}

func TestRefusalsComeBackByteForByte(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	n := 0
	for name, change := range changes {
		name, _, _ := strings.Cut(name, " ")
		if change.refused == nil {
			continue
		}
		for _, p := range protocols {
			n++
			tag := fmt.Sprint("t", n)
			c.prepare(tag)
			before := s.dump("mine")
			first := c.call(p, name, change.refused(tag), "Idempotency-Key", tag, "X-Request-ID", "first-"+tag)
			if first.code != "failed_precondition" || first.reason(t) != change.reason || first.replayed() {
				t.Errorf("%s over %s: %s %s, replayed %v", name, p.name, first.code, first.message, first.replayed())
			}
			after := s.dump("mine")
			if after["commit_keys"] == before["commit_keys"] || !strings.Contains(after["commit_keys"], "first-"+tag) {
				t.Errorf("%s over %s: the refusal is not recorded", name, p.name)
			}
			for table := range before {
				if table != "commit_keys" && before[table] != after[table] {
					t.Errorf("%s over %s: the refusal left something in %s", name, p.name, table)
				}
			}
			again := c.call(p, name, change.refused(tag), "Idempotency-Key", tag, "X-Request-ID", "again-"+tag)
			if !bytes.Equal(first.raw, again.raw) || !again.replayed() ||
				again.header.Get("X-Request-Id") != "again-"+tag {
				t.Errorf("%s over %s, again: replayed %v\n%q\n%q", name, p.name, again.replayed(), first.raw, again.raw)
			}
			if a := c.call(p, name, change.well(tag), "Idempotency-Key", tag+"-well"); a.code != "" {
				t.Errorf("%s over %s: after the refusal under a new key: %s", name, p.name, a.message)
			}
		}
	}
}

func TestReplayOutlivesTheServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	c.prepare("a")
	well := c.call(connectJSON, "Transfer", payment("a", "5"), "Idempotency-Key", "w")
	refused := payment("a", "1000")
	refused.BizNo = "refused"
	no := c.call(grpc, "Transfer", refused, "Idempotency-Key", "r")
	s.server.Stop()
	s.start(server.Options{})
	if a := c.call(connectJSON, "Transfer", payment("a", "5.00"), "Idempotency-Key", "w"); !bytes.Equal(a.raw,
		well.raw) || !a.replayed() {
		t.Errorf("%q\n%q", well.raw, a.raw)
	}
	if a := c.call(grpc, "Transfer", refused, "Idempotency-Key", "r"); !bytes.Equal(a.raw, no.raw) || !a.replayed() ||
		a.code == "" {
		t.Errorf("%q\n%q", no.raw, a.raw)
	}
}

func TestKeysAreScopedByTenantPrincipalAndOperation(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	c.prepare("a")
	colleague := &caller{s, s.key("mine", "colleague", access.Write)}
	rotated := &caller{s, s.key("mine", "boss", access.Write)}
	stranger := &caller{s, s.key("theirs", "boss", access.Write)}
	stranger.prepare("a")
	first := c.call(connectJSON, "Transfer", payment("a", "5"), "Idempotency-Key", "k")
	if a := rotated.call(connectJSON, "Transfer", payment("a", "5"), "Idempotency-Key", "k"); !a.replayed() ||
		!bytes.Equal(a.raw, first.raw) {
		t.Errorf("another API key of the same principal: %s", a.raw)
	}
	other := payment("a", "5")
	other.BizNo = "colleague"
	for who, c := range map[string]*caller{"colleague": colleague, "stranger": stranger} {
		if a := c.call(connectJSON, "Transfer", other, "Idempotency-Key", "k"); a.replayed() || a.code != "" {
			t.Errorf("%s: %s", who, a.raw)
		}
	}
	if a := c.call(connectJSON, "Hold", changes["Hold"].well("a"), "Idempotency-Key", "k"); a.replayed() ||
		a.code != "" {
		t.Errorf("another operation: %s", a.raw)
	}
}

func TestBadKeysAreRefusedAndNothingIsDone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	c.prepare("a")
	before := s.dump("mine")
	for _, key := range []string{"", `"`, `""`, `"a`, `"a"b"`, `"a\b"`, "ümlaut", "tab\there", strings.Repeat("k", 256), `"` + strings.Repeat("k", 256) + `"`} {
		for _, p := range protocols {
			if a := c.call(p, "Transfer", payment("a", "5"), "Idempotency-Key", key); a.code != "invalid_argument" ||
				a.reason(t) != "IDEMPOTENCY_KEY_INVALID" {
				t.Errorf("key %q over %s: %s %s", key, p.name, a.code, a.message)
			}
		}
	}
	if a := c.call(connectJSON, "Transfer", payment("a", "5"), "Idempotency-Key", "a", "Idempotency-Key",
		"b"); a.code != "invalid_argument" {
		t.Errorf("two keys: %s", a.raw)
	}
	for table, rows := range s.dump("mine") {
		if rows != before[table] {
			t.Errorf("%s changed", table)
		}
	}
	for _, key := range []string{"a", strings.Repeat("k", 255), `"` + strings.Repeat("q", 255) + `"`, `"with \" and \\"`, "with spaces; and=signs", "#1"} {
		r := payment("a", "0.01")
		r.BizNo = "good-" + key[:1] + fmt.Sprint(len(key))
		if a := c.call(connectJSON, "Transfer", r, "Idempotency-Key", key); a.code != "" {
			t.Errorf("key %q: %s", key, a.message)
		}
	}
}

func TestThousandCallersWithOneKeyGetOneAnswer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	c.prepare("a")
	entries := s.count("select count(*) from ledger_entries")
	body := connectJSON.encode(t, payment("a", "5"))
	var wg sync.WaitGroup
	var mu sync.Mutex
	got, firsts := map[string]int{}, 0
	for range 1000 {
		wg.Go(func() {
			a := c.send(connectJSON, path(method(t, "Transfer")), body, "Idempotency-Key", "k")
			mu.Lock()
			defer mu.Unlock()
			got[string(a.raw)]++
			if !a.replayed() {
				firsts++
			}
		})
	}
	wg.Wait()
	if len(got) != 1 || firsts != 1 {
		t.Errorf("%d different answers, %d of them first: %.300v", len(got), firsts, got)
	}
	if now := s.count("select count(*) from ledger_entries"); now != entries+2 {
		t.Errorf("%d entries", now-entries)
	}
}

func TestATenantMayDemandKeysAndSayHowLongTheyLive(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	other := &caller{s, s.key("other", "boss", access.Write)}
	c.prepare("a")
	other.prepare("a")
	super := pgtest.Pool(t, s.db.SuperDSN)
	tenant, err := access.Tenant(t.Context(), super, "mine")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []access.Policy{{Operation: "ledger.transfer", KeyRequired: true, KeyLife: 48 * time.Hour},
		{Operation: access.Others, KeyLife: time.Hour}} {
		if err := access.SetPolicy(t.Context(), super, tenant, r); err != nil {
			t.Fatal(err)
		}
	}
	soon(t, 20*time.Second, "a transfer without key is refused", func() bool {
		a := c.call(connectJSON, "Transfer", payment("a", "1000"))
		return a.reason(t) == "IDEMPOTENCY_KEY_MISSING"
	})
	dry := payment("a", "1")
	dry.DryRun = true
	for name, r := range map[string]proto.Message{"Transfer": dry, "Hold": keep("kept", "u:a", "world", "1")} {
		if a := c.call(connectJSON, name, r); a.code != "" {
			t.Errorf("%s ended %s", name, a.message)
		}
	}
	for name, r := range map[string]proto.Message{"TransferBatch": batch("a", "1", true),
		"Batch.Execute": execute(operation("", payment("a", "1")))} {
		if a := c.call(connectJSON, name, r); a.reason(t) != "IDEMPOTENCY_KEY_MISSING" {
			t.Errorf("transfers inside of %s ended %q %s", name, a.code, a.message)
		}
	}
	res, _ := c.batch(&ledgerv1.TransferBatchRequest{Items: []*ledgerv1.TransferBatchItem{item("i1", "u:a", "1", ""),
		item("i2", "u:a", "1", "own")}})
	if r := res.GetResults()[0].GetError().GetReason(); r != "IDEMPOTENCY_KEY_MISSING" ||
		res.GetResults()[1].GetError() != nil {
		t.Errorf("items ended %v", res.GetResults())
	}
	if a := other.call(connectJSON, "Transfer", payment("a", "1")); a.code != "" {
		t.Errorf("of another tenant a key was demanded too: %s", a.message)
	}
	for i, x := range []struct {
		call   string
		r      proto.Message
		header string
		hours  int
	}{{"Transfer", item("l1", "u:a", "1", "").GetTransfer(), "%s", 48}, {"Hold", keep("l2", "u:a", "world", "1"), "%s",
		1},
		{"Transfer", item("l3", "u:a", "1", "").GetTransfer(), `"%s";life=7200`, 2}} {
		key := fmt.Sprint("live-", i)
		if a := c.call(connectJSON, x.call, x.r, "Idempotency-Key", fmt.Sprintf(x.header, key)); a.code != "" {
			t.Errorf("%s: %s", x.call, a.message)
		}
		if n := s.count("select extract(epoch from expires_at - created_at)::integer / 3600 from commit_keys where key = $1", key); n != x.hours {
			t.Errorf("%s lives %d hours, not %d", key, n, x.hours)
		}
	}
	if a := c.call(connectJSON, "Transfer", payment("a", "1"), "Idempotency-Key", `"x";life=1`); a.reason(t) != "IDEMPOTENCY_KEY_INVALID" {
		t.Errorf("a key for a second: %s", a.message)
	}
}

func TestATenantMayDemandTokens(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	c.prepare("a")
	super := pgtest.Pool(t, s.db.SuperDSN)
	tenant, err := access.Tenant(t.Context(), super, "mine")
	if err != nil {
		t.Fatal(err)
	}
	for _, operation := range []string{"ledger.transfer", access.Others} {
		if err := access.SetPolicy(t.Context(), super, tenant,
			access.Policy{Operation: operation, TokenRequired: true,
				KeyRequired: operation == access.Others}); err != nil {
			t.Fatal(err)
		}
	}
	soon(t, 20*time.Second, "a transfer without token is refused", func() bool {
		return c.call(connectJSON, "Transfer", payment("a", "1000")).reason(t) == "TOKEN_MISSING"
	})
	fresh := func() string { // for which nothing is demanded
		return ok(c, "Idempotency.IssueTokens", &idempotencyv1.IssueTokensRequest{},
			new(idempotencyv1.IssueTokensResponse)).GetTokens()[0]
	}
	const key = "Idempotency-Key"
	dry := payment("a", "1")
	dry.DryRun = true
	if a := c.call(connectJSON, "Transfer", dry); a.code != "" {
		t.Errorf("a dry run ended %s", a.message)
	}
	for i, x := range []struct {
		call    string
		r       proto.Message
		reason  string
		headers []string
	}{
		{"Hold", keep("one", "u:a", "world", "1"), "IDEMPOTENCY_KEY_MISSING", []string{"Submit-Token", fresh()}},
		{"Hold", keep("one", "u:a", "world", "1"), "TOKEN_MISSING", []string{key, "k1"}},
		{"Hold", keep("one", "u:a", "world", "1"), "", []string{key, "k1", "Submit-Token", fresh()}},
		{"Hold", keep("one", "u:a", "world", "1"), "", []string{key, "k1"}}, // a replay needs none
		{"TransferBatch", batch("a", "1", false), "FIELD_INVALID", []string{key, "k2"}},
		{"TransferBatch", batch("a", "1", true), "TOKEN_MISSING", []string{key, "k3"}},
		{"TransferBatch", batch("a", "1", true), "", []string{key, "k3", "Submit-Token", fresh()}},
		{"Batch.Execute", execute(operation("", item("two", "u:a", "1", "").GetTransfer())), "TOKEN_MISSING",
			[]string{key, "k4"}},
		{"Batch.Execute", execute(operation("", item("two", "u:a", "1", "").GetTransfer()),
			operation("", &idempotencyv1.SpendTokenRequest{Token: fresh()})), "",
			[]string{key, "k5"}},
	} {
		if a := c.call(connectJSON, x.call, x.r, x.headers...); a.code != "" && a.reason(t) != x.reason ||
			a.code == "" && x.reason != "" {
			t.Errorf("%d: %s ended %q %s, not %s", i, x.call, a.code, a.message, x.reason)
		}
	}
}
