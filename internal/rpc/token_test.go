package rpc_test

import (
	"fmt"
	"maps"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	errorsv1 "github.com/ledgerd/ledgerd/gen/ledgerd/errors/v1"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

const tokenHeader = "Submit-Token"

// newCaller returns a caller on a new site, with the resources of tag "a": u:a has 90 available.
func newCaller(t *testing.T) *caller {
	t.Helper()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	return c
}

func (c *caller) token(r *idempotencyv1.IssueTokensRequest) string {
	c.T.Helper()
	return ok(c, "Idempotency.IssueTokens", r, new(idempotencyv1.IssueTokensResponse)).GetTokens()[0]
}

// plain returns a token without subject and purpose.
func (c *caller) plain() string {
	c.T.Helper()
	return c.token(&idempotencyv1.IssueTokensRequest{})
}

// wants compares the reason of a response; "" is success.
func (a answer) wants(t testing.TB, what, reason string) {
	t.Helper()
	got := ""
	if a.Code != "" {
		got = a.Reason(t)
	}
	if got != reason {
		t.Errorf("%s: %q (%s), want %q", what, got, a.Message, reason)
	}
}

// wantsState compares values of the error's state.
func (a answer) wantsState(t testing.TB, want map[string]string) {
	t.Helper()
	for name, value := range want {
		if got := a.State(name); got != value {
			t.Errorf("%s is %q, want %q: %s", name, got, value, a.Message)
		}
	}
}

func (a answer) step() errorsv1.NextStep {
	d, _ := servertest.Detail(a.Answer, new(errorsv1.ErrorDetail))
	return d.GetNextStep()
}

func TestIssuedTokensAreStoredAsHashes(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	form := regexp.MustCompile(`^st_[0-9a-z]{32}$`)
	seen := map[string]bool{}
	for _, p := range protocols {
		a := c.call(p, "Idempotency.IssueTokens",
			&idempotencyv1.IssueTokensRequest{Count: 1000, Subject: "user:1", Life: durationpb.New(time.Hour)})
		res := new(idempotencyv1.IssueTokensResponse)
		p.Decode(t, a.Raw, res)
		if len(res.GetTokens()) != 1000 || a.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d tokens, %v", p.Name, len(res.GetTokens()), a.Header)
		}
		if left := time.Until(res.GetExpireTime().AsTime()); left < 59*time.Minute || left > time.Hour+time.Minute {
			t.Errorf("the life of the tokens is %v", left)
		}
		for _, token := range res.GetTokens() {
			if seen[token] || !form.MatchString(token) {
				t.Fatalf("token %q", token)
			}
			seen[token] = true
		}
	}
	rows := c.dump("mine")["token_submit_tokens"]
	const secret = 32 // characters of a token after "st_"
	for i := range max(0, len(rows)-secret+1) {
		if seen["st_"+rows[i:i+secret]] {
			t.Fatal("a token is in the database")
		}
	}
	if n := c.Count("select count(*) from token_submit_tokens where state = 'open' and subject = 'user:1' " +
		"and expires_at = issued_at + interval '1 h'"); n != 4000 {
		t.Errorf("%d rows", n)
	}
	for what, r := range map[string]*idempotencyv1.IssueTokensRequest{
		"too many": {Count: 1001}, "less than none": {Count: -1}, "too short": {Life: durationpb.New(time.Millisecond)},
		"too long": {Life: durationpb.New(25 * time.Hour)}, "control character": {Subject: "a\nb"},
		"long": {Purpose: strings.Repeat("é", 128)},
	} {
		c.call(connectJSON, "Idempotency.IssueTokens", r).wants(t, what, "FIELD_INVALID")
	}
}

func TestTokenIsSpentOnce(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	for i, p := range protocols {
		token, tag := c.token(&idempotencyv1.IssueTokensRequest{Subject: "user:1001", Purpose: "order"}),
			fmt.Sprint("order-", i)
		header := token + `; subject="user:1001"; purpose=order`
		first := c.call(p, "Transfer", pay(tag, "u:a", "world", "1"), tokenHeader, header, "X-Request-ID", "first-"+tag)
		first.wants(t, p.Name, "")
		made := new(ledgerv1.TransferResponse)
		p.Decode(t, first.Raw, made)
		if first.Header.Get("Submit-Token-Next") != "" {
			t.Error("a next token without the parameter next")
		}
		for _, p := range protocols {
			again := c.call(p, "Hold", keep(tag+"-again", "u:a", "", "1"), tokenHeader, header)
			again.wants(t, p.Name, "TOKEN_SPENT")
			again.wantsState(t, map[string]string{"first_outcome": "done", "first_operation": "ledger.transfer",
				"first_request_id": "first-" + tag,
				"first_resource":   "transfer", "first_biz_no": tag,
				"first_id": fmt.Sprint(made.GetTransfer().GetId())})
			if d, _ := servertest.Detail(again.Answer,
				new(errorsv1.ErrorDetail)); d.GetClass() != errorsv1.ErrorClass_ERROR_CLASS_DUPLICATE ||
				d.GetNextStep() != errorsv1.NextStep_NEXT_STEP_IGNORE || !d.GetShowToUser() ||
				again.Code != "already_exists" {
				t.Errorf("%s %v", again.Code, d)
			}
			if at, err := time.Parse(time.RFC3339Nano, again.State("first_time")); err != nil ||
				time.Since(at).Abs() > time.Minute {
				t.Errorf("first_time is %q", again.State("first_time"))
			}
		}
		if strings.Contains(c.Log.String(), token[3:]) {
			t.Error("the token is in the log")
		}
	}
	if b := c.balance("u:a"); b != "91.00" { // 95 of which 5 are held
		t.Errorf("u:a has %s", b)
	}
	if lines := c.Log.With("first_request_id", "first-order-0"); len(lines) != len(protocols) ||
		lines[0]["reason"] != "TOKEN_SPENT" {
		t.Errorf("the log has %v", lines)
	}
}

func TestTokenErrorsHaveTheirReasons(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	stranger := &caller{c.site, c.Key("theirs", "boss", access.Admin)}
	bound := c.token(&idempotencyv1.IssueTokensRequest{Subject: "user:ä", Purpose: "order"})
	subject := c.token(&idempotencyv1.IssueTokensRequest{Subject: "user:1"})
	expired, late, forgotten := c.plain(), c.plain(), c.plain()
	c.call(connectJSON, "Idempotency.SpendToken",
		&idempotencyv1.SpendTokenRequest{Token: late, Result: "order 7"}).wants(t, "spend", "")
	age := func(token, back string) {
		t.Helper()
		if n, err := c.Pool.Exec(t.Context(), `update token_submit_tokens set issued_at = issued_at - $2::interval,
			expires_at = expires_at - $2::interval, forget_at = forget_at - $2::interval,
			spent_at = spent_at - $2::interval
			where token_hash = sha256($1)`, []byte(token), back); err != nil || n.RowsAffected() != 1 {
			t.Fatal(n, err)
		}
	}
	age(expired, "6 min")
	age(late, "6 min")
	age(forgotten, "2 h")
	before := c.dump("mine")
	for i, x := range []struct{ header, reason string }{
		{"", "TOKEN_MISSING"}, {`""`, "TOKEN_MISSING"}, {`; subject="user:ä"`, "FIELD_INVALID"},
		{`;subject="user:1"`, "TOKEN_MISSING"},
		{"st_" + strings.Repeat("0", 32), "TOKEN_UNKNOWN"}, {"other", "TOKEN_UNKNOWN"},
		{strings.ToUpper(bound), "TOKEN_UNKNOWN"},
		{stranger.plain(), "TOKEN_UNKNOWN"}, {forgotten, "TOKEN_UNKNOWN"},
		{bound, "TOKEN_FOREIGN"}, {bound + `; subject=%"user:%c3%a4"`, "TOKEN_FOREIGN"},
		{bound + `; purpose="order"`, "TOKEN_FOREIGN"},
		{bound + `; subject="user:a"; purpose="order"`, "TOKEN_FOREIGN"},
		{subject + "; subject=user:2", "TOKEN_FOREIGN"}, {subject, "TOKEN_FOREIGN"},
		{expired, "TOKEN_EXPIRED"}, {late, "TOKEN_SPENT"},
	} {
		for _, p := range protocols {
			a := c.call(p, "Transfer", pay("x", "u:a", "world", "1"), tokenHeader, x.header, "Idempotency-Key",
				fmt.Sprint("k", i))
			a.wants(t, x.header+" over "+p.Name, x.reason)
			if x.reason != "FIELD_INVALID" && x.reason != "TOKEN_SPENT" &&
				a.step() != errorsv1.NextStep_NEXT_STEP_NEW_TOKEN {
				t.Errorf("after %s: %s", x.reason, a.step())
			}
			if x.reason == "TOKEN_SPENT" {
				a.wantsState(t, map[string]string{"first_result": "order 7",
					"first_operation": "idempotency.spend_token"})
			}
		}
	}
	for table, rows := range c.dump("mine") {
		if rows != before[table] {
			t.Errorf("%s changed", table)
		}
	}
	a := c.call(connectJSON, "Transfer", pay("x", "u:a", "world", "1"), tokenHeader, bound)
	a.wantsState(t, map[string]string{"differs": "subject,purpose"})
	// The same request key with a valid token succeeds: the failures were not recorded. A token without a purpose
	// accepts any purpose.
	c.call(connectJSON, "Transfer", pay("x", "u:a", "world", "1"), tokenHeader,
		subject+"; subject=user:1; purpose=anything", "Idempotency-Key", "k0").wants(t, "corrected", "")
	c.call(connectJSON, "Transfer", pay("y", "u:a", "world", "1"), tokenHeader, bound+
		`; subject=%"user:%c3%a4"; purpose=order`).wants(t, "with its names", "")
	for reason, r := range map[string]*idempotencyv1.SpendTokenRequest{
		"TOKEN_MISSING": {}, "TOKEN_UNKNOWN": {Token: "st_x"}, "TOKEN_FOREIGN": {Token: bound},
		"TOKEN_EXPIRED": {Token: expired},
		"TOKEN_SPENT":   {Token: subject, Subject: "user:1"}, "FIELD_INVALID": {Token: expired, Result: "a\tb"},
	} {
		c.call(grpc, "Idempotency.SpendToken", r).wants(t, "SpendToken", reason)
	}
}

func TestInvalidTokenHeadersAreRefused(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	token := c.plain()
	before := c.dump("mine")
	for _, header := range []string{token + ", " + token, token + "; next=1", token + "; subject", token +
		`; subject="a`, token + "; other=1", "?1", "12",
		token + "; ", token + ";=1", token + "; Subject=a", `"` + token, token + " " + token, "(" + token + ")",
		token + `; subject="ä"`, token + `; subject=%"%c3"`, token + `; subject=%"%C3%A4"`, token + `; subject="a\b"`,
		token + `; subject="` + strings.Repeat("s", 256) + `"`, token + `; subject=%"%0a"`} {
		for _, p := range protocols {
			c.call(p, "Transfer", pay("x", "u:a", "world", "1"), tokenHeader, header).wants(t, header+" over "+p.Name,
				"FIELD_INVALID")
		}
	}
	dry := pay("x", "u:a", "world", "1")
	dry.DryRun = true
	together := batch("a", "5", true)
	together.DryRun = true
	for name, requests := range map[string][]proto.Message{
		"Transfer": {dry}, "TransferBatch": {batch("a", "5", false),
			together}, "GetBalance": {&ledgerv1.GetBalanceRequest{Account: ref("u:a", "COIN")}},
		"ListAssets": {&ledgerv1.ListAssetsRequest{}},
	} {
		for _, r := range requests {
			c.call(connectProto, name, r, tokenHeader, token).wants(t, name, "FIELD_INVALID")
		}
	}
	twice := c.call(connectJSON, "Transfer", pay("x", "u:a", "world", "1"), tokenHeader, token, tokenHeader, token)
	twice.wants(t, "two headers", "FIELD_INVALID")
	if after := c.dump("mine"); !maps.Equal(before, after) {
		t.Error("rows changed")
	}
	stream, err := c.client().WatchEntries(t.Context(), &ledgerv1.WatchEntriesRequest{})
	if err != nil || !stream.Receive() {
		t.Fatal(err) // the unmodified header is valid
	}
	_ = stream.Close()
	c.send(grpc, path(method(t, "WatchEntries")), nil, tokenHeader, token).wants(t, "a stream", "FIELD_INVALID")
	c.call(connectJSON, "TransferBatch", batch("a", "5", true), tokenHeader, token, "X-Request-ID", "all").wants(t,
		"all or nothing", "")
	again := c.call(connectJSON, "Transfer", pay("x", "u:a", "world", "1"), tokenHeader, token)
	again.wantsState(t, map[string]string{"first_operation": "ledger.transfer_batch", "first_biz_no": "other-a",
		"first_request_id": "all"})
}

func TestARefusalSpendsTheTokenUnlessItSurvives(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	for _, p := range protocols {
		token := c.plain()
		for i := range 2 { // the second is the recorded refusal
			no := c.call(p, "Transfer", pay("no", "u:a", "world", "1000"), tokenHeader, token+";next",
				"Idempotency-Key", "no-"+p.Name)
			no.wants(t, p.Name, "INSUFFICIENT_FUNDS")
			no.wantsState(t, map[string]string{"submit_token": "spent", "available": "90.00"})
			if no.step() != errorsv1.NextStep_NEXT_STEP_NEW_TOKEN || no.Header.Get("Submit-Token-Next") != "" ||
				no.Replayed() != (i == 1) {
				t.Errorf("the next step is %s, in %v", no.step(), no.Header)
			}
		}
		again := c.call(p, "Transfer", pay("yes", "u:a", "world", "1"), tokenHeader, token)
		again.wants(t, p.Name, "TOKEN_SPENT")
		again.wantsState(t, map[string]string{"first_outcome": "refused", "first_operation": "ledger.transfer",
			"first_biz_no": ""})
		if again.step() != errorsv1.NextStep_NEXT_STEP_NEW_TOKEN {
			t.Errorf("the next step is %s", again.step())
		}

		token = c.token(&idempotencyv1.IssueTokensRequest{SurvivesRefusal: true})
		no := c.call(p, "Transfer", pay("no", "u:a", "world", "1000"), tokenHeader, token)
		no.wants(t, p.Name, "INSUFFICIENT_FUNDS")
		no.wantsState(t, map[string]string{"submit_token": "kept"})
		if no.step() != errorsv1.NextStep_NEXT_STEP_NEW_KEY {
			t.Errorf("the next step is %s", no.step())
		}
		c.call(p, "Transfer", pay("yes-"+p.Name, "u:a", "u:a2", "1"), tokenHeader, token).wants(t, "a bad request",
			"ACCOUNT_NOT_FOUND")
		c.call(p, "Transfer", pay("yes-"+p.Name, "u:a", "spent:a", "1"), tokenHeader, token).wants(t, "corrected", "")
		c.call(p, "Transfer", pay("more", "u:a", "world", "1"), tokenHeader, token).wants(t, "second submit",
			"TOKEN_SPENT")
		c.call(p, "Transfer", pay("back-"+p.Name, "spent:a", "u:a", "1")).wants(t, "back", "")
	}
	if n := c.Count("select count(*) from token_submit_tokens where state = 'refused' and result is null " +
		"and forget_at = expires_at + interval '24 h'"); n != 4 {
		t.Errorf("%d tokens are refused", n)
	}
}

func TestInvalidRequestsAndConflictsDoNotSpendTheToken(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	token := c.plain()
	stale := pay("x", "u:a", "world", "1")
	stale.Conditions = []*ledgerv1.Condition{{Account: ref("u:a", "COIN"), Version: proto.Int64(77)}}
	before := c.dump("mine")
	for reason, r := range map[string]proto.Message{
		"FIELD_INVALID": pay("", "u:a", "world", "1"), "ACCOUNT_NOT_FOUND": pay("x", "u:a", "nobody",
			"1"), "STALE_VERSION": stale,
		"BIZ_NO_EXISTS_DIFFERENT": pay("fund-a", "u:a", "world", "1"),
		"AMOUNT_TOO_PRECISE":      pay("x", "u:a", "world", "1.001"),
	} {
		c.call(grpc, "Transfer", r, tokenHeader, token, "Idempotency-Key", "k").wants(t, "with a valid token", reason)
	}
	if !maps.Equal(before, c.dump("mine")) {
		t.Error("rows changed")
	}
	c.call(grpc, "Transfer", pay("x", "u:a", "world", "1"), tokenHeader, token, "Idempotency-Key", "k").wants(t,
		"corrected", "")
	// A repeat under the resource's own name spends the token too.
	other := c.plain()
	a := c.call(grpc, "Transfer", pay("x", "u:a", "world", "1"), tokenHeader, other)
	if a.wants(t, "the same order", ""); !a.Replayed() {
		t.Error("the transfer existed before")
	}
	a = c.call(grpc, "Transfer", pay("y", "u:a", "world", "1"), tokenHeader, other)
	a.wants(t, "another order", "TOKEN_SPENT")
	a.wantsState(t, map[string]string{"first_biz_no": "x", "first_outcome": "done"})
}

func TestReplayNeedsNoUnspentToken(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	for _, p := range protocols {
		token, key := c.plain(), p.Name
		r := pay(p.Name, "u:a", "world", "1")
		first := c.call(p, "Transfer", r, tokenHeader, token+"; next", "Idempotency-Key", key)
		next := first.Header.Get("Submit-Token-Next")
		if first.wants(t, p.Name, ""); !strings.HasPrefix(next, "st_") ||
			first.Header.Get("Cache-Control") != "no-store" {
			t.Fatalf("%s: %v", p.Name, first.Header)
		}
		for what, token := range map[string]string{"the same token": token, "no token": "",
			"the spent one of another": c.plain()} {
			again := c.call(p, "Transfer", r, tokenHeader, token+"; next", "Idempotency-Key", key)
			if again.wants(t, what, ""); !again.Replayed() || string(again.Raw) != string(first.Raw) {
				t.Errorf("%s: %v", what, again.Header)
			}
			want := ""
			if what == "the same token" {
				want = next
			}
			if got := again.Header.Get("Submit-Token-Next"); got != want {
				t.Errorf("with %s the next token is %q, want %q", what, got, want)
			}
		}
		if a := c.call(p, "Transfer", r, tokenHeader, token, "Idempotency-Key",
			key); a.Header.Get("Submit-Token-Next") != "" {
			t.Error("a next token without the parameter next")
		}
		c.call(p, "Transfer", pay("other", "u:a", "world", "1"), tokenHeader, token, "Idempotency-Key",
			key+"2").wants(t, "another key", "TOKEN_SPENT")
		if strings.Contains(fmt.Sprint(c.dump("mine")), next[3:]) {
			t.Error("the next token is in the database")
		}
	}
}

func TestNextTokenAllowsAnotherSubmit(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	first := c.token(&idempotencyv1.IssueTokensRequest{Subject: "user:1", Purpose: "gift",
		Life: durationpb.New(2 * time.Hour), SurvivesRefusal: true})
	token, names := first, "; subject=user:1; purpose=gift; next"
	for i := range 5 {
		p := protocols[i%len(protocols)]
		a := c.call(p, "Transfer", pay(fmt.Sprint("gift-", i), "u:a", "world", "1"), tokenHeader, token+names,
			"X-Request-ID", fmt.Sprint("gift-", i))
		a.wants(t, fmt.Sprint("gift ", i), "")
		if token = a.Header.Get("Submit-Token-Next"); token == "" {
			t.Fatal("no next token")
		}
		c.call(p, "Transfer", pay("x", "u:a", "world", "1"), tokenHeader, token).wants(t, "without its names",
			"TOKEN_FOREIGN")
		no := c.call(p, "Transfer", pay("x", "u:a", "world", "1000"), tokenHeader, token+names)
		if no.wants(t, "refused", "INSUFFICIENT_FUNDS"); no.Header.Get("Submit-Token-Next") != "" {
			t.Error("a refused submit carries a next token")
		}
	}
	a := c.call(connectJSON, "Transfer", pay("x", "u:a", "world", "1"), tokenHeader, first+names)
	a.wants(t, "the first one", "TOKEN_SPENT")
	a.wantsState(t, map[string]string{"first_biz_no": "gift-0"})
	if n := c.Count(`select count(*) from token_submit_tokens n
		join token_submit_tokens s on n.request_id = s.spent_request_id
		where n.life_ms = 7200000 and n.expires_at = n.issued_at + interval '2 h' and n.survives_refusal
		and n.subject = 'user:1' and n.purpose = 'gift'`); n != 5 {
		t.Errorf("%d tokens follow another", n)
	}
}

// After every mutation of the ledger, the error of a second submit names the resource.
func TestSpentTokensNameTheResource(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	n := 0
	for name, change := range changes {
		name, _, _ = strings.Cut(name, " ")
		tag := fmt.Sprint("n", n)
		r := change.well(tag)
		if b, ok := r.(*ledgerv1.TransferBatchRequest); strings.Contains(name, ".") && name != "Batch.Execute" || ok &&
			!b.GetAllOrNothing() {
			continue
		}
		n++
		c.prepare(tag)
		token := c.plain()
		c.call(grpc, name, r, tokenHeader, token).wants(t, name, "")
		a := c.call(grpc, "Transfer", pay("again-"+tag, "world", "u:"+tag, "1"), tokenHeader, token)
		a.wants(t, name+" again", "TOKEN_SPENT")
		if a.State("first_resource") == "" || a.State("first_id")+a.State("first_code") == "" {
			t.Errorf("%s: %v", name, a.Details)
		}
	}
	if n < 12 {
		t.Errorf("only %d changes were made", n)
	}
}

// A Begin makes several attempts. One of them spends the token, and later ones do not check it again.
func TestTokenOfABeginIsSpentOnce(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	r := &idempotencyv1.BeginRequest{Scope: "s", Key: "k"}
	token := c.plain()
	first := c.run(r, tokenHeader, token, "Idempotency-Key", "1")
	if again := c.begin(r, tokenHeader, token, "Idempotency-Key", "1"); again.GetRun().GetFence() != first.GetFence() {
		t.Errorf("the same key got %v, not %v", again, first)
	}
	// A Begin whose wait ends without success uses neither token nor claim.
	other := &idempotencyv1.BeginRequest{Scope: "s", Key: "k", Wait: durationpb.New(100 * time.Millisecond)}
	headers := []string{tokenHeader, c.plain() + "; next", "Claim-Key", `"p"; first-only`}
	c.call(grpc, "Idempotency.Begin", other, headers...).wants(t, "a wait", "WORK_RUNNING")
	ok(c, "Idempotency.Abandon", &idempotencyv1.AbandonRequest{Scope: "s", Key: "k", Fence: first.GetFence()},
		new(idempotencyv1.AbandonResponse))
	waited := c.call(grpc, "Idempotency.Begin", other, headers...)
	waited.wants(t, "after the wait", "")
	if next := waited.Header.Get("Submit-Token-Next"); next == "" || waited.Header.Get("Claim-Count") != "1" {
		t.Errorf("after the wait: %v", waited.Header)
	}
}
