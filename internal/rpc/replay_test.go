package rpc_test

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	errorsv1 "github.com/ledgerd/ledgerd/gen/ledgerd/errors/v1"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	lockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server"
)

// change is a mutation on resources that prepare makes for a tag: a successful request and a refused one.
type change struct {
	well    func(tag string) proto.Message
	refused func(tag string) proto.Message // nil: no business rule refuses it
	reason  string
}

// manyNames has enough entries for the random order of maps to show in an encoding.
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

// changes has all mutations. TransferBatch has two entries.
var changes = map[string]change{
	"CreateAssets": {well: func(tag string) proto.Message {
		return &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "A" + tag, Scale: 3}, {Code: "B" + tag}}}
	}},
	"CreateAccounts": {reason: "ACCOUNT_LIMIT_VIOLATED", well: func(tag string) proto.Message {
		return &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{{Code: "new:" + tag, Asset: "COIN",
			Metadata: manyNames}}}
	}, refused: func(tag string) proto.Message {
		return &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{{Code: "new:" + tag, Asset: "COIN",
			MinBalance: proto.String("5")}}}
	}},
	"UpdateAccount": {reason: "ACCOUNT_LIMIT_VIOLATED", well: func(tag string) proto.Message {
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
		return &lockv1.AcquireRequest{Name: "free-" + tag, Holder: "me", Lease: durationpb.New(time.Hour)}
	}},
	"Lock.Renew": {reason: "LOCK_LOST", well: func(tag string) proto.Message {
		return &lockv1.RenewRequest{Name: "lock-" + tag, Fence: prepared}
	}, refused: func(tag string) proto.Message {
		return &lockv1.RenewRequest{Name: "lock-" + tag, Fence: 1 << 60}
	}},
	"Lock.Release": {reason: "LOCK_LOST", well: func(tag string) proto.Message {
		return &lockv1.ReleaseRequest{Name: "lock-" + tag, Fence: prepared}
	}, refused: func(tag string) proto.Message {
		return &lockv1.ReleaseRequest{Name: "lock-" + tag, Fence: 1 << 60}
	}},
	"Release": {reason: "HOLD_NOT_HELD", well: func(tag string) proto.Message {
		return &ledgerv1.ReleaseRequest{Hold: &ledgerv1.ReleaseRequest_HoldBizNo{HoldBizNo: "hold-" + tag}}
	}, refused: func(tag string) proto.Message {
		return &ledgerv1.ReleaseRequest{Hold: &ledgerv1.ReleaseRequest_HoldBizNo{HoldBizNo: "over-" + tag}}
	}},
}

// prepare creates the resources of a tag for the mutations of all services.
func (c *caller) prepare(tag string) {
	c.T.Helper()
	c.prepareLedger(tag)
	for _, more := range preparers {
		more(c, tag)
	}
}

// prepareFor creates those resources of a tag that the mutations of one service need.
func (c *caller) prepareFor(call, tag string) {
	c.T.Helper()
	service, _, other := strings.Cut(call, ".")
	if more := preparers[service]; other && more != nil {
		more(c, tag)
		return
	}
	c.prepareLedger(tag)
}

// preparers create the resources for mutations of other services, by service.
var preparers = map[string]func(c *caller, tag string){
	"Idempotency": (*caller).prepareIdempotency,
	"Lock": func(c *caller, tag string) {
		lock := ok(c, "Lock.Acquire", &lockv1.AcquireRequest{Name: "lock-" + tag, Lease: durationpb.New(time.Hour)},
			new(lockv1.AcquireResponse)).GetLock()
		c.fences.Store(lock.GetName(), lock.GetFence())
	},
}

// prepareLedger creates an account with 90 COIN available of 100, 10 held, and others.
func (c *caller) prepareLedger(tag string) {
	c.T.Helper()
	ok(c, "CreateAssets", &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "COIN", Scale: 2}}},
		new(ledgerv1.CreateAssetsResponse))
	ok(c, "CreateAccounts", &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{{Code: "world",
		Asset: "COIN", Unbounded: true},
		{Code: "u:" + tag, Asset: "COIN"}, {Code: "empty:" + tag, Asset: "COIN"},
		{Code: "closed:" + tag, Asset: "COIN"},
		{Code: "spent:" + tag, Asset: "COIN"}}}, new(ledgerv1.CreateAccountsResponse))
	move := func(bizNo, from, to, n string) *batchv1.Operation {
		return operation("", &ledgerv1.TransferRequest{BizNo: bizNo + "-" + tag,
			Postings: posting(from, to, "COIN", n)})
	}
	c.executed(execute(
		operation("", &ledgerv1.CloseAccountRequest{Account: ref("closed:"+tag, "COIN")}),
		move("base", "world", "u:"+tag, "50"), move("fund", "world", "u:"+tag, "50"),
		move("spent", "world", "spent:"+tag, "7"), move("gone", "spent:"+tag, "world", "7"),
		operation("", keep("hold-"+tag, "u:"+tag, "world", "5")),
		operation("", keep("over-"+tag, "u:"+tag, "world", "5"))))
	ok(c, "Capture", &ledgerv1.CaptureRequest{BizNo: "all-" + tag,
		Hold: &ledgerv1.CaptureRequest_HoldBizNo{HoldBizNo: "over-" + tag}}, new(ledgerv1.CaptureResponse))
}

// prepareIdempotency creates a submit token "st_" plus the tag (which no server would issue), a claimed key, and work.
func (c *caller) prepareIdempotency(tag string) {
	c.T.Helper()
	if _, err := c.Pool.Exec(c.T.Context(), `insert into token_submit_tokens (tenant_id, token_hash, subject, life_ms,
			survives_refusal, principal, request_id, issued_at, expires_at, forget_at)
		values ($1, sha256($2), $3, 3600000, false, 'boss', 'prepare', now(), now() + interval '1 h', now() + interval
		'2 h')`,
		c.tenant(), []byte("st_"+tag), "user:"+tag); err != nil {
		c.T.Fatal(err)
	}
	ok(c, "Idempotency.ClaimKey", &idempotencyv1.ClaimKeyRequest{Scope: "taken", Key: tag, Owner: "somebody"},
		new(idempotencyv1.ClaimKeyResponse))
	c.prepareWork(tag)
}

// tenant returns the number of the caller's tenant.
func (c *caller) tenant() int32 {
	c.T.Helper()
	n, err := strconv.ParseInt(strings.Split(c.apiKey, "_")[1], 10, 32)
	if err != nil {
		c.T.Fatal(err)
	}
	return int32(n)
}

func TestEveryMutationHasATestCase(t *testing.T) {
	for _, m := range methods(t) {
		if m.IsStreamingServer() || callName(m) == "Sale.GrabMany" {
			continue // a stream cannot be replayed; each grab is a mutation: TestManyGrabsAreAnsweredEach
		}
		if _, found := changes[callName(m)]; found == (reads(m) || keyless(m)) {
			t.Errorf("%s: found %v", m.Name(), found)
		}
	}
}

// Calls without a recorded response cannot be replayed, so they refuse a key.
func TestUnrecordedCallsRefuseKeys(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c, mine := createResources(s, "mine")
	n := 0
	for _, m := range methods(t) {
		if !keyless(m) {
			continue
		}
		for _, r := range examples[callName(m)](mine) {
			for _, p := range protocols {
				n++
				before := s.dump("mine")
				if a := c.call(p, callName(m), r, "Idempotency-Key", "key"); a.Code != "invalid_argument" ||
					a.Reason(t) != "IDEMPOTENCY_KEY_UNSUPPORTED" {
					t.Errorf("%s over %s with a key: %s %s", m.FullName(), p.Name, a.Code, a.Message)
				}
				first, again := c.call(p, callName(m), r), c.call(p, callName(m), r)
				if relays(m) { // no gateway is configured here
					if first.Reason(t) != "GATEWAY_NOT_CONFIGURED" {
						t.Errorf("%s over %s: %s", m.FullName(), p.Name, first.Message)
					}
				} else if first.Code != "" || again.Code != "" || first.Replayed() || again.Replayed() {
					t.Errorf("%s over %s: %s, again: %s", m.FullName(), p.Name, first.Message, again.Message)
				}
				after := s.dump("mine")
				delete(before, "token_submit_tokens") // issued tokens expire
				delete(after, "token_submit_tokens")
				if !maps.Equal(before, after) {
					t.Errorf("%s over %s changed rows", m.FullName(), p.Name)
				}
			}
		}
	}
	if n == 0 {
		t.Error("there is no such call")
	}
}

// replayCase is a change over one protocol, on resources of its own.
type replayCase struct {
	change
	name, variant string // of the method, and of the change
	tag           string
	protocol      protocol
	first         answer
}

// replayCases returns a case for each change and protocol.
func replayCases(over ...protocol) (cases []*replayCase) {
	for name, change := range changes {
		for _, p := range over {
			x := &replayCase{change: change, tag: fmt.Sprint("t", len(cases)), protocol: p}
			x.name, x.variant, _ = strings.Cut(name, " ")
			cases = append(cases, x)
		}
	}
	return cases
}

// each runs all cases, several at a time: concurrent calls share commits.
func each(cases []*replayCase, run func(x *replayCase)) {
	var all sync.WaitGroup
	slots := make(chan struct{}, 16)
	for _, x := range cases {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			run(x)
		})
	}
	all.Wait()
}

func TestResponsesAreReplayedByteForByte(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	const key = "Idempotency-Key"
	cases := replayCases(protocols...)
	each(cases, func(x *replayCase) {
		c.prepareFor(x.name, x.tag)
		x.first = c.call(x.protocol, x.name, x.well(x.tag), key, x.tag)
		if x.first.Code != "" || x.first.Replayed() || len(x.first.Raw) == 0 {
			t.Errorf("%s over %s: %s %s, replayed %v", x.name, x.protocol.Name, x.first.Code, x.first.Message,
				x.first.Replayed())
		}
	})
	entries := s.Count("select count(*) from ledger_entries")
	each(cases, func(x *replayCase) {
		again := c.call(x.protocol, x.name, x.well(x.tag), key, `"`+x.tag+`"`)
		if !bytes.Equal(x.first.Raw, again.Raw) || !again.Replayed() {
			t.Errorf("%s over %s, again: replayed %v\n%q\n%q", x.name, x.protocol.Name, again.Replayed(), x.first.Raw,
				again.Raw)
		}
		for _, q := range protocols { // the same message in every protocol
			res, want := fill(t, method(t, x.name)), fill(t, method(t, x.name))
			x.protocol.Decode(t, x.first.Raw, want)
			q.Decode(t, c.call(q, x.name, x.well(x.tag), key, x.tag).Raw, res)
			if !proto.Equal(res, want) {
				t.Errorf("%s first over %s, then over %s:\n%v\n%v", x.name, x.protocol.Name, q.Name, want, res)
			}
		}
	})
	if now := s.Count("select count(*) from ledger_entries"); now != entries {
		t.Errorf("replays had effects: %d more entries", now-entries)
	}
	each(cases, func(x *replayCase) {
		other := c.call(x.protocol, x.name, x.well(x.tag+"x"), key, x.tag)
		if x.name == "TransferBatch" && other.Code == "" {
			res := new(ledgerv1.TransferBatchResponse)
			x.protocol.Decode(t, other.Raw, res)
			for _, r := range res.GetResults() {
				if r.GetError().GetReason() != "IDEMPOTENCY_KEY_REUSED" ||
					r.GetError().GetDetail().GetClass() != errorsv1.ErrorClass_ERROR_CLASS_BAD_REQUEST {
					t.Errorf("%s with other content: %v", x.name, r)
				}
			}
		} else if other.Code != "already_exists" || other.Reason(t) != "IDEMPOTENCY_KEY_REUSED" {
			t.Errorf("%s over %s with other content: %s %s", x.name, x.protocol.Name, other.Code, other.Message)
		}
	})
}

func TestRefusalsAreReplayedByteForByte(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	cases := slices.DeleteFunc(replayCases(protocols...), func(x *replayCase) bool { return x.refused == nil })
	each(cases, func(x *replayCase) { c.prepareFor(x.name, x.tag) })
	before := s.dump("mine")
	each(cases, func(x *replayCase) {
		x.first = c.call(x.protocol, x.name, x.refused(x.tag), "Idempotency-Key", x.tag, "X-Request-ID", "first-"+x.tag)
		if x.first.Code != "failed_precondition" || x.first.Reason(t) != x.reason || x.first.Replayed() {
			t.Errorf("%s over %s: %s %s, replayed %v", x.name, x.protocol.Name, x.first.Code, x.first.Message,
				x.first.Replayed())
		}
	})
	after := s.dump("mine")
	for _, x := range cases {
		if id := `"first-` + x.tag + `"`; strings.Contains(before["commit_keys"], id) ||
			!strings.Contains(after["commit_keys"], id) {
			t.Errorf("%s over %s: the refusal is not recorded", x.name, x.protocol.Name)
		}
	}
	delete(before, "commit_keys")
	delete(after, "commit_keys")
	wantSame(t, "the refusals", before, after)
	each(cases, func(x *replayCase) {
		again := c.call(x.protocol, x.name, x.refused(x.tag), "Idempotency-Key", x.tag, "X-Request-ID", "again-"+x.tag)
		if !bytes.Equal(x.first.Raw, again.Raw) || !again.Replayed() ||
			again.Header.Get("X-Request-Id") != "again-"+x.tag {
			t.Errorf("%s over %s, again: replayed %v\n%q\n%q", x.name, x.protocol.Name, again.Replayed(), x.first.Raw,
				again.Raw)
		}
		if a := c.call(x.protocol, x.name, x.well(x.tag), "Idempotency-Key", x.tag+"-well"); a.Code != "" {
			t.Errorf("%s over %s: after the refusal under a new key: %s", x.name, x.protocol.Name, a.Message)
		}
	})
}

// wantSame compares two dumps, and names the rows that only one of them has.
func wantSame(t *testing.T, what string, before, after map[string]string) {
	t.Helper()
	if len(before) != len(after) {
		t.Errorf("%d tables before %s, %d after", len(before), what, len(after))
	}
	for table, rows := range before {
		if rows == after[table] {
			continue
		}
		known, differ := map[string]int{}, []string{}
		for row := range strings.Lines(rows) {
			known[strings.TrimSpace(row)]++
		}
		for row := range strings.Lines(after[table]) {
			known[strings.TrimSpace(row)]--
		}
		for row, n := range known {
			if n != 0 {
				differ = append(differ, fmt.Sprintf("%+d %s", -n, row))
			}
		}
		t.Errorf("%s changed %s:\n%.2000s", what, table, strings.Join(differ, "\n"))
	}
}

func TestReplayOutlivesTheServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	well := c.call(connectJSON, "Transfer", payment("a", "5"), "Idempotency-Key", "w")
	refused := payment("a", "1000")
	refused.BizNo = "refused"
	no := c.call(grpc, "Transfer", refused, "Idempotency-Key", "r")
	s.Server.Stop()
	s.Start(server.Options{})
	if a := c.call(connectJSON, "Transfer", payment("a", "5.00"), "Idempotency-Key", "w"); !bytes.Equal(a.Raw,
		well.Raw) || !a.Replayed() {
		t.Errorf("%q\n%q", well.Raw, a.Raw)
	}
	if a := c.call(grpc, "Transfer", refused, "Idempotency-Key", "r"); !bytes.Equal(a.Raw, no.Raw) || !a.Replayed() ||
		a.Code == "" {
		t.Errorf("%q\n%q", no.Raw, a.Raw)
	}
}

func TestKeysAreScopedByTenantPrincipalAndOperation(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	colleague := &caller{s, s.Key("mine", "colleague", access.Write)}
	rotated := &caller{s, s.Key("mine", "boss", access.Admin)}
	stranger := &caller{s, s.Key("theirs", "boss", access.Admin)}
	stranger.prepare("a")
	first := c.call(connectJSON, "Transfer", payment("a", "5"), "Idempotency-Key", "k")
	if a := rotated.call(connectJSON, "Transfer", payment("a", "5"), "Idempotency-Key", "k"); !a.Replayed() ||
		!bytes.Equal(a.Raw, first.Raw) {
		t.Errorf("another API key of the same principal: %s", a.Raw)
	}
	other := payment("a", "5")
	other.BizNo = "colleague"
	for who, c := range map[string]*caller{"colleague": colleague, "stranger": stranger} {
		if a := c.call(connectJSON, "Transfer", other, "Idempotency-Key", "k"); a.Replayed() || a.Code != "" {
			t.Errorf("%s: %s", who, a.Raw)
		}
	}
	if a := c.call(connectJSON, "Hold", changes["Hold"].well("a"), "Idempotency-Key", "k"); a.Replayed() ||
		a.Code != "" {
		t.Errorf("another operation: %s", a.Raw)
	}
}

func TestInvalidKeysAreRefusedWithoutEffect(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	before := s.dump("mine")
	for _, key := range []string{"", `"`, `""`, `"a`, `"a"b"`, `"a\b"`, "ümlaut", "tab\there", strings.Repeat("k", 256),
		`"` + strings.Repeat("k", 256) + `"`} {
		for _, p := range protocols {
			if a := c.call(p, "Transfer", payment("a", "5"), "Idempotency-Key", key); a.Code != "invalid_argument" ||
				a.Reason(t) != "IDEMPOTENCY_KEY_INVALID" {
				t.Errorf("key %q over %s: %s %s", key, p.Name, a.Code, a.Message)
			}
		}
	}
	if a := c.call(connectJSON, "Transfer", payment("a", "5"), "Idempotency-Key", "a", "Idempotency-Key",
		"b"); a.Code != "invalid_argument" {
		t.Errorf("two keys: %s", a.Raw)
	}
	for table, rows := range s.dump("mine") {
		if rows != before[table] {
			t.Errorf("%s changed", table)
		}
	}
	for _, key := range []string{"a", strings.Repeat("k", 255), `"` + strings.Repeat("q", 255) + `"`,
		`"with \" and \\"`, "with spaces; and=signs", "#1"} {
		r := payment("a", "0.01")
		r.BizNo = "good-" + key[:1] + fmt.Sprint(len(key))
		if a := c.call(connectJSON, "Transfer", r, "Idempotency-Key", key); a.Code != "" {
			t.Errorf("key %q: %s", key, a.Message)
		}
	}
}

func TestThousandCallersWithOneKeyGetOneAnswer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	entries := s.Count("select count(*) from ledger_entries")
	body := connectJSON.Encode(t, payment("a", "5"))
	var wg sync.WaitGroup
	var mu sync.Mutex
	got, firsts := map[string]int{}, 0
	for range 1000 {
		wg.Go(func() {
			a := c.send(connectJSON, path(method(t, "Transfer")), body, "Idempotency-Key", "k")
			mu.Lock()
			defer mu.Unlock()
			got[string(a.Raw)]++
			if !a.Replayed() {
				firsts++
			}
		})
	}
	wg.Wait()
	if len(got) != 1 || firsts != 1 {
		t.Errorf("%d different answers, %d of them first: %.300v", len(got), firsts, got)
	}
	if now := s.Count("select count(*) from ledger_entries"); now != entries+2 {
		t.Errorf("%d entries", now-entries)
	}
}

func TestPolicyMayRequireKeysAndSetTheirLife(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	other := &caller{s, s.Key("other", "boss", access.Admin)}
	c.prepare("a")
	other.prepare("a")
	super := pgtest.Pool(t, s.DB.SuperDSN)
	tenant, err := access.Tenant(t.Context(), super, "mine")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []access.Policy{{Operation: "ledger.transfer", KeyRequired: true, KeyLife: 48 * time.Hour},
		{Operation: access.Others, KeyLife: time.Hour}} {
		if err := access.Administer(super).PutPolicy(t.Context(), tenant, r); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, 20*time.Second, "a transfer without key is refused", func() bool {
		a := c.call(connectJSON, "Transfer", payment("a", "1000"))
		return a.Reason(t) == "IDEMPOTENCY_KEY_MISSING"
	})
	dry := payment("a", "1")
	dry.DryRun = true
	for name, r := range map[string]proto.Message{"Transfer": dry, "Hold": keep("kept", "u:a", "world", "1")} {
		if a := c.call(connectJSON, name, r); a.Code != "" {
			t.Errorf("%s ended %s", name, a.Message)
		}
	}
	for name, r := range map[string]proto.Message{"TransferBatch": batch("a", "1", true),
		"Batch.Execute": execute(operation("", payment("a", "1")))} {
		if a := c.call(connectJSON, name, r); a.Reason(t) != "IDEMPOTENCY_KEY_MISSING" {
			t.Errorf("transfers inside of %s ended %q %s", name, a.Code, a.Message)
		}
	}
	res, _ := c.batch(&ledgerv1.TransferBatchRequest{Items: []*ledgerv1.TransferBatchItem{item("i1", "u:a", "1", ""),
		item("i2", "u:a", "1", "own")}})
	if r := res.GetResults()[0].GetError().GetReason(); r != "IDEMPOTENCY_KEY_MISSING" ||
		res.GetResults()[1].GetError() != nil {
		t.Errorf("items ended %v", res.GetResults())
	}
	if a := other.call(connectJSON, "Transfer", payment("a", "1")); a.Code != "" {
		t.Errorf("the policy applies to another tenant: %s", a.Message)
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
		if a := c.call(connectJSON, x.call, x.r, "Idempotency-Key", fmt.Sprintf(x.header, key)); a.Code != "" {
			t.Errorf("%s: %s", x.call, a.Message)
		}
		if n := s.Count("select extract(epoch from expires_at - created_at)::integer / 3600 from commit_keys "+
			"where key = $1", key); n != x.hours {
			t.Errorf("%s lives %d hours, want %d", key, n, x.hours)
		}
	}
	if a := c.call(connectJSON, "Transfer", payment("a", "1"), "Idempotency-Key",
		`"x";life=1`); a.Reason(t) != "IDEMPOTENCY_KEY_INVALID" {
		t.Errorf("a key for a second: %s", a.Message)
	}
}

func TestPolicyMayRequireTokens(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	super := pgtest.Pool(t, s.DB.SuperDSN)
	tenant, err := access.Tenant(t.Context(), super, "mine")
	if err != nil {
		t.Fatal(err)
	}
	for _, operation := range []string{"ledger.transfer", access.Others} {
		if err := access.Administer(super).PutPolicy(t.Context(), tenant,
			access.Policy{Operation: operation, TokenRequired: true,
				KeyRequired: operation == access.Others}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, 20*time.Second, "a transfer without token is refused", func() bool {
		return c.call(connectJSON, "Transfer", payment("a", "1000")).Reason(t) == "TOKEN_MISSING"
	})
	fresh := func() string { // IssueTokens itself requires no token
		return ok(c, "Idempotency.IssueTokens", &idempotencyv1.IssueTokensRequest{},
			new(idempotencyv1.IssueTokensResponse)).GetTokens()[0]
	}
	const key = "Idempotency-Key"
	dry := payment("a", "1")
	dry.DryRun = true
	if a := c.call(connectJSON, "Transfer", dry); a.Code != "" {
		t.Errorf("a dry run ended %s", a.Message)
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
		if a := c.call(connectJSON, x.call, x.r, x.headers...); a.Code != "" && a.Reason(t) != x.reason ||
			a.Code == "" && x.reason != "" {
			t.Errorf("%d: %s ended %q %s, not %s", i, x.call, a.Code, a.Message, x.reason)
		}
	}
}
