package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	lockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1"
	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/lock"
	"github.com/ledgerd/ledgerd/internal/token"
	"github.com/ledgerd/ledgerd/internal/work"
)

func (b *keyBench) cases() []keyCase {
	return []keyCase{
		{"claim", "claim a page id", InProcess, b.claim},
		{"token", "issue a submit token", InProcess, b.token},
		{"spend", "spend a submit token (issued 200 at a time)", InProcess, b.spend},
		{"work", "Begin, then Complete: two commits", InProcess, b.work},
		{"lock", "Acquire, then Release: two commits", InProcess, b.lock},
		{"claim-rpc", "ClaimKey", Connect, b.claimCall},
		{"token-rpc", "IssueTokens", Connect, b.tokenCall},
		{"spend-rpc", "SpendToken (issued 200 at a time)", Connect, b.spendCall},
		{"work-rpc", "Begin, then Complete: two calls", Connect, b.workCall},
		{"lock-rpc", "Acquire, then Release: two calls", Connect, b.lockCall},
	}
}

func (d *database) caller() commit.Caller {
	return commit.Caller{Tenant: d.tenant, Principal: tenantName, RequestID: tenantName}
}

// drain ends an engine of this process.
func (d *database) drain(engine *flow.Engine) {
	ctx, cancel := context.WithTimeout(context.Background(), stopPatience)
	defer cancel()
	if err := engine.Drain(ctx); err != nil {
		d.progress("drain: %v", err)
	}
}

// do runs a command in this process's engine, as a server would.
func (b *keyBench) do(ctx context.Context, c flow.Command, rows int) (any, error) {
	out, err := b.engine.Do(ctx, flow.Submission{Tenant: b.tenant, RequestID: tenantName, Command: c, Rows: rows,
		Bytes: 512})
	return out.Answer, err
}

var errExisted = errors.New("a new key was claimed before")

func (b *keyBench) claim(ctx context.Context, _ int, key string) error {
	answer, err := b.do(ctx, flow.Claim(&claim.Command{Caller: b.caller(),
		Params: claim.Params{Scope: claim.PageScope, Key: key, Life: claim.PageLife}}), 1)
	if err == nil && answer.(claim.Use).Existed {
		err = errExisted
	}
	return err
}

func (b *keyBench) token(ctx context.Context, _ int, _ string) error {
	_, err := b.issue(ctx, 1)
	return err
}

func (b *keyBench) issue(ctx context.Context, n int) ([]string, error) {
	c := &token.IssueCommand{Caller: b.caller(), Tokens: make([]string, n), Purpose: "order", Life: token.DefaultLife}
	for i := range c.Tokens {
		c.Tokens[i] = token.New()
	}
	_, err := b.do(ctx, flow.Token(c), n)
	return c.Tokens, err
}

// supply gives tokens to callers, fetching more when a caller has none left.
type supply struct {
	mu     sync.Mutex
	tokens map[int][]string
	fetch  func(ctx context.Context, n int) ([]string, error)
}

func newSupply(fetch func(context.Context, int) ([]string, error)) *supply {
	return &supply{tokens: make(map[int][]string), fetch: fetch}
}

const tokensAtOnce = 200

func (s *supply) take(ctx context.Context, caller int) (string, error) {
	s.mu.Lock()
	left := s.tokens[caller]
	s.mu.Unlock()
	if len(left) == 0 {
		var err error
		if left, err = s.fetch(ctx, tokensAtOnce); err != nil {
			return "", err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens[caller] = left[1:]
	return left[0], nil
}

func (b *keyBench) spend(ctx context.Context, caller int, _ string) error {
	t, err := b.tokens.take(ctx, caller)
	if err != nil {
		return err
	}
	_, err = b.do(ctx, flow.Token(&token.SpendCommand{Spend: token.Spend{Caller: b.caller(), Token: t,
		Purpose: "order", Operation: "bench.spend"}}), 1)
	return err
}

var (
	fingerprint = []byte("0123456789abcdef")
	workAnswer  = []byte(`{"order":"77"}`)
)

func (b *keyBench) work(ctx context.Context, _ int, key string) error {
	recorded, err := work.NewAnswer(201, nil, workAnswer)
	if err != nil {
		return err
	}
	answer, err := b.do(ctx, flow.Work(&work.BeginCommand{Caller: b.caller(),
		BeginParams: work.BeginParams{Scope: "bench", Key: key, Fingerprint: fingerprint,
			Lease: 30 * time.Second, Life: 24 * time.Hour}}), 1)
	if err != nil {
		return err
	}
	_, err = b.do(ctx, flow.Work(&work.CompleteCommand{Caller: b.caller(), State: work.Done, Answer: recorded,
		Held: work.Held{Scope: "bench", Key: key, Fence: answer.(work.Begun).Fence}}), 1)
	return err
}

func (b *keyBench) lock(ctx context.Context, caller int, _ string) error {
	name := fmt.Sprint("bench:", caller)
	answer, err := b.do(ctx, flow.Lock(&lock.AcquireCommand{Caller: b.caller(),
		AcquireParams: lock.AcquireParams{Name: name, Holder: "bench", Lease: 30 * time.Second}}), 1)
	if err != nil {
		return err
	}
	_, err = b.do(ctx, flow.Lock(&lock.ReleaseCommand{Caller: b.caller(), Name: name,
		Fence: answer.(lock.Acquired).Fence}), 1)
	return err
}

func (b *keyBench) claimCall(ctx context.Context, _ int, key string) error {
	res, err := b.client.Idempotency.ClaimKey(ctx, &idempotencyv1.ClaimKeyRequest{Key: key})
	if err == nil && res.GetExisted() {
		err = errExisted
	}
	return err
}

func (b *keyBench) tokenCall(ctx context.Context, _ int, _ string) error {
	_, err := b.fetch(ctx, 1)
	return err
}

func (b *keyBench) fetch(ctx context.Context, n int) ([]string, error) {
	res, err := b.client.Idempotency.IssueTokens(ctx,
		&idempotencyv1.IssueTokensRequest{Purpose: "order", Count: int32(n)})
	return res.GetTokens(), err
}

func (b *keyBench) spendCall(ctx context.Context, caller int, _ string) error {
	t, err := b.rpcStock.take(ctx, caller)
	if err != nil {
		return err
	}
	_, err = b.client.Idempotency.SpendToken(ctx, &idempotencyv1.SpendTokenRequest{Token: t, Purpose: "order"})
	return err
}

func (b *keyBench) workCall(ctx context.Context, _ int, key string) error {
	res, err := b.client.Idempotency.Begin(ctx,
		&idempotencyv1.BeginRequest{Scope: "bench", Key: key, Fingerprint: fingerprint})
	if err != nil {
		return err
	}
	_, err = b.client.Idempotency.Complete(ctx, &idempotencyv1.CompleteRequest{Scope: "bench", Key: key,
		Fence: res.GetRun().GetFence(), Outcome: idempotencyv1.WorkOutcome_WORK_OUTCOME_DONE,
		Answer: &idempotencyv1.RecordedAnswer{Status: 201, Body: workAnswer}})
	return err
}

func (b *keyBench) lockCall(ctx context.Context, caller int, _ string) error {
	name := fmt.Sprint("bench-rpc:", caller)
	res, err := b.client.Locks.Acquire(ctx, &lockv1.AcquireRequest{Name: name, Wait: durationpb.New(0)})
	if err != nil {
		return err
	}
	_, err = b.client.Locks.Release(ctx, &lockv1.ReleaseRequest{Name: name, Fence: res.GetLock().GetFence()})
	return err
}

// verify compares the database with the acknowledged operations, by case.
func (b *keyBench) verify(ctx context.Context, done map[string]int64, r *Report) error {
	var claims, spent, works, held int64
	if err := b.conn.QueryRow(ctx, sql("keys")).Scan(&claims, &spent, &works, &held); err != nil {
		return err
	}
	for _, x := range []struct {
		what       string
		told, left int64
	}{
		{"claims", done["claim"] + done["claim-rpc"], claims},
		{"tokens spent", done["spend"] + done["spend-rpc"], spent},
		{"works done", done["work"] + done["work-rpc"], works},
		{"locks that are held", 0, held},
	} {
		if x.told != x.left {
			r.fail("%s: %d acknowledged, %d in the database", x.what, x.told, x.left)
		}
	}
	return nil
}
