package rpc_test

import (
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	errorsv1 "github.com/ledgerd/ledgerd/gen/ledgerd/errors/v1"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
)

func spendToken(token, result string) *idempotencyv1.SpendTokenRequest {
	return &idempotencyv1.SpendTokenRequest{Token: token, Result: result}
}

func TestATokenGuardsTheOperationsOfAnExecute(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	for _, p := range protocols {
		token, tag := c.plain(), p.ContentType
		c.call(p, "Batch.Execute", execute(operation("", pay(tag+"1", "u:a", "world", "1")),
			operation("", spendToken(token, "order 1"))),
			"X-Request-ID", "first-"+p.ContentType).wants(t, p.Name, "")
		again := c.call(p, "Batch.Execute",
			execute(operation("", pay(tag+"2", "u:a", "world", "1")), operation("token", spendToken(token, "order 2"))))
		again.wants(t, "again", "TOKEN_SPENT")
		again.wantsState(t, map[string]string{"operation": "1", "operation_name": "token", "first_result": "order 1",
			"first_outcome":   "done",
			"first_operation": "idempotency.spend_token", "first_request_id": "first-" + p.ContentType})

		refused := c.plain()
		no := c.call(p, "Batch.Execute",
			execute(operation("", spendToken(refused, "x")), operation("", pay(tag+"3", "u:a", "world", "1000"))))
		no.wants(t, "refused", "INSUFFICIENT_FUNDS")
		no.wantsState(t, map[string]string{"submit_token": "spent", "operation": "1"})
		if no.step() != errorsv1.NextStep_NEXT_STEP_NEW_TOKEN {
			t.Errorf("the next step is %s", no.step())
		}
		again = c.call(p, "Idempotency.SpendToken", spendToken(refused, "x"))
		again.wants(t, "after the refusal", "TOKEN_SPENT")
		again.wantsState(t, map[string]string{"first_outcome": "refused", "first_result": ""})

		survives := c.token(&idempotencyv1.IssueTokensRequest{SurvivesRefusal: true})
		no = c.call(p, "Batch.Execute", execute(operation("", spendToken(survives, "x")),
			operation("", pay(tag+"3", "u:a", "world", "1000"))))
		no.wants(t, "refused", "INSUFFICIENT_FUNDS")
		no.wantsState(t, map[string]string{"submit_token": "kept"})
		c.call(p, "Batch.Execute", execute(operation("", spendToken(survives, "x")),
			operation("", pay(tag+"3", "u:a", "world", "1000.001")))).
			wants(t, "a bad request", "AMOUNT_TOO_PRECISE")
		c.call(p, "Batch.Execute", execute(operation("", spendToken(survives, "x")),
			operation("", spendToken(survives, "y")))).
			wants(t, "twice in one", "FIELD_INVALID")
		c.call(p, "Idempotency.SpendToken", spendToken(survives, "x")).wants(t, "it survived", "")
	}
}

func TestSpentTokenOfAnExecuteNamesItsFirstResource(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	token, other := c.plain(), c.plain()
	c.call(grpc, "Batch.Execute", execute(operation("", spendToken(other, "nothing with a name")),
		operation("", keep("kept", "u:a", "", "1")),
		operation("", pay("paid", "u:a", "world", "1"))), tokenHeader, token, "X-Request-ID", "both").wants(t,
		"both tokens", "")
	again := c.call(grpc, "Batch.Execute", execute(operation("", keep("again", "u:a", "", "1"))), tokenHeader, token)
	again.wants(t, "the header's", "TOKEN_SPENT")
	again.wantsState(t, map[string]string{"first_operation": "batch.execute", "first_resource": "hold",
		"first_biz_no": "kept", "first_request_id": "both", "operation": ""})
	one := c.plain()
	c.call(grpc, "Batch.Execute", execute(operation("", spendToken(one, "x"))), tokenHeader, one).wants(t,
		"one token, spent twice", "FIELD_INVALID")
	c.call(grpc, "Idempotency.SpendToken", spendToken(one, "x")).wants(t, "and so not at all", "")
}

func TestSpendTokenRefusesDryRun(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	token := c.plain()
	before := c.dump("mine")
	r := execute(operation("", pay("x", "u:a", "world", "1")), operation("", spendToken(token, "x")))
	r.DryRun = true
	c.call(connectJSON, "Batch.Execute", r).wants(t, "as an operation", "FIELD_INVALID")
	r = execute(operation("", pay("x", "u:a", "world", "1")))
	r.DryRun = true
	c.call(connectJSON, "Batch.Execute", r, tokenHeader, token).wants(t, "by the header", "FIELD_INVALID")
	c.call(connectJSON, "Batch.Execute", r).wants(t, "without a token", "")
	c.call(connectJSON, "Batch.Execute", execute(operation("", &idempotencyv1.IssueTokensRequest{}))).wants(t,
		"issuing, which would be recorded", "FIELD_INVALID")
	if !maps.Equal(before, c.dump("mine")) {
		t.Error("rows changed")
	}
	c.call(connectJSON, "Idempotency.SpendToken", spendToken(token, "x")).wants(t, "in earnest", "")
}

// A rollback leaves the token unspent.
func TestRollbackLeavesTheTokenUnspent(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	if _, err := c.Pool.Exec(t.Context(), `create function fail() returns trigger language plpgsql as $$ begin
			if new.biz_no = 'poison' then raise exception 'not today' using errcode = '23514'; end if; return new; end
			$$;
		create constraint trigger fail after insert on ledger_transfers deferrable initially deferred for each row
		execute function fail()`); err != nil {
		t.Fatal(err)
	}
	for _, p := range protocols {
		for _, r := range []*idempotencyv1.IssueTokensRequest{{}, {SurvivesRefusal: true}} {
			token := c.token(r)
			before := c.dump("mine")
			for range 2 {
				a := c.call(p, "Transfer", pay("poison", "u:a", "world", "0.01"), tokenHeader, token+"; next",
					"Idempotency-Key", token[3:])
				if a.wants(t, p.Name, "INTERNAL"); a.Header.Get("Submit-Token-Next") != "" {
					t.Error("a failed submit carries a next token")
				}
			}
			if !maps.Equal(before, c.dump("mine")) {
				t.Error("rows changed")
			}
			r := pay(p.Name+fmt.Sprint(r), "u:a", "world", "0.01")
			c.call(p, "Transfer", r, tokenHeader, token+"; next", "Idempotency-Key", token[3:]).wants(t, "sound again",
				"")
		}
	}
}

func TestThousandSubmitsOfOneFormOverTwoServersAreOne(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	callers := []*caller{c, c.second()}
	for name, request := range map[string]*idempotencyv1.IssueTokensRequest{"plain": {},
		"survives": {SurvivesRefusal: true}} {
		token := c.token(request)
		bodies := make([][]byte, 1000)
		for i := range bodies {
			bodies[i] = connectJSON.Encode(t, pay(fmt.Sprint(name, i), "u:a", "world", "0.01"))
		}
		var all sync.WaitGroup
		var mu sync.Mutex
		done, told := "", map[string]int{}
		start := make(chan struct{})
		for i := range bodies {
			all.Go(func() {
				<-start
				a := callers[i%2].send(connectJSON, path(method(t, "Transfer")), bodies[i], tokenHeader, token)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case a.Code == "" && done == "":
					done = fmt.Sprint(name, i)
				case a.Code == "":
					t.Errorf("%s%d succeeded, and %s too", name, i, done)
				default:
					told[a.Reason(t)+" "+a.State("first_biz_no")]++
				}
			})
		}
		close(start)
		all.Wait()
		if len(told) != 1 || told["TOKEN_SPENT "+done] != 999 {
			t.Errorf("%s succeeded, the others got %v", done, told)
		}
		if n := c.Count("select count(*) from ledger_transfers where biz_no like $1", name+"%"); n != 1 {
			t.Errorf("%d transfers", n)
		}
	}
}

func TestExpiredTokensAreDeleted(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	if _, err := c.Pool.Exec(t.Context(), `insert into token_submit_tokens (tenant_id, token_hash, life_ms,
			survives_refusal, principal, request_id, issued_at, expires_at, forget_at)
		select tenant_id, sha256(i::text::bytea), 1000, false, 'p', 'old', now() - interval '3 days',
		now() - interval '2 days', now() + (i - 2500) * interval '1 min'
		from generate_series(1, 2600) i, access_tenants where name = 'mine'`); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "2,500 tokens are forgotten", func() bool {
		return c.Count("select count(*) from token_submit_tokens where request_id = 'old' and forget_at <= now()") == 0
	})
	if n := c.Count("select count(*) from token_submit_tokens where request_id = 'old'"); n < 99 || n > 100 {
		t.Errorf("%d are left", n)
	}
	if n := c.Count("select count(*) from token_submit_tokens where request_id = 'prepare'"); n != 1 {
		t.Errorf("%d unexpired tokens are left", n)
	}
}

// After a failover to a server with a slower clock, spent_at is not before issued_at.
func TestSpendTimeIsNeverBeforeIssueTime(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	token := c.plain()
	if _, err := c.Pool.Exec(t.Context(), `update token_submit_tokens set issued_at = issued_at + interval '1 min',
		expires_at = expires_at + interval '1 min', forget_at = forget_at + interval '1 min'
		where token_hash = sha256($1)`, []byte(token)); err != nil {
		t.Fatal(err)
	}
	c.call(connectJSON, "Transfer", pay("x", "u:a", "world", "1"), tokenHeader, token).wants(t, "with another clock",
		"")
	if n := c.Count("select count(*) from token_submit_tokens where state = 'spent' and spent_at = issued_at"); n != 1 {
		t.Errorf("%d tokens were spent at their issue", n)
	}
}
