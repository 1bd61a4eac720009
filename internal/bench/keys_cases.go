package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
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

// cases are all there are: those of Redis only if it is there.
func (b *keyBench) cases() []KeyCase {
	var all []KeyCase
	if b.redis != nil {
		all = append(all, KeyCase{"redis", "SET key NX EX, its log synced every second", Redis, setNX})
	}
	return append(all, []KeyCase{
		{"claim", "claim a page id", InProcess, claims},
		{"token", "issue a submit token", InProcess, issues},
		{"spend", "spend a submit token (issued 200 at a time)", InProcess, spends},
		{"work", "Begin, then Complete: two commits", InProcess, works},
		{"lock", "Acquire, then Release: two commits", InProcess, locks},
		{"claim-rpc", "ClaimKey", Connect, claimCalls},
		{"token-rpc", "IssueTokens", Connect, issueCalls},
		{"spend-rpc", "SpendToken (issued 200 at a time)", Connect, spendCalls},
		{"work-rpc", "Begin, then Complete: two calls", Connect, workCalls},
		{"lock-rpc", "Acquire, then Release: two calls", Connect, lockCalls},
	}...)
}

// name is one that no other operation has.
func name(run string, caller, n int) string {
	return run + ":" + strconv.Itoa(caller) + ":" + strconv.Itoa(n)
}

func (b *keyBench) caller() commit.Caller {
	return commit.Caller{Tenant: b.tenant, Principal: tenantName, RequestID: tenantName}
}

// do runs a command in the engine of this process, as a server would with a call.
func (b *keyBench) do(ctx context.Context, c flow.Command, rows int) (any, error) {
	out, err := b.engine.Do(ctx, flow.Submission{Tenant: b.tenant, RequestID: tenantName, Command: c, Rows: rows,
		Bytes: 512})
	return out.Answer, err
}

func claims(_ context.Context, b *keyBench) (operation, error) {
	return func(ctx context.Context, run string, caller, n int) error {
		answer, err := b.do(ctx, flow.Claim(&claim.Command{Caller: b.caller(),
			Params: claim.Params{Scope: claim.PageScope, Key: name(run, caller, n), Life: claim.PageLife}}), 1)
		if err == nil && answer.(claim.Use).Existed {
			err = errors.New("a new key was claimed before")
		}
		return err
	}, nil
}

func issues(_ context.Context, b *keyBench) (operation, error) {
	return func(ctx context.Context, _ string, _, _ int) error {
		_, err := b.issue(ctx, 1)
		return err
	}, nil
}

func (b *keyBench) issue(ctx context.Context, n int) ([]string, error) {
	c := &token.IssueCommand{Caller: b.caller(), Tokens: make([]string, n), Purpose: "order", Life: token.DefaultLife}
	for i := range c.Tokens {
		c.Tokens[i] = token.New()
	}
	_, err := b.do(ctx, flow.Token(c), n)
	return c.Tokens, err
}

// stock hands tokens out to callers, and fetches some when one has none left.
type stock struct {
	mu     sync.Mutex
	tokens map[int][]string
	fetch  func(context.Context) ([]string, error)
}

func newStock(fetch func(context.Context) ([]string, error)) *stock {
	return &stock{tokens: make(map[int][]string), fetch: fetch}
}

func (s *stock) take(ctx context.Context, caller int) (string, error) {
	s.mu.Lock()
	left := s.tokens[caller]
	s.mu.Unlock()
	if len(left) == 0 {
		var err error
		if left, err = s.fetch(ctx); err != nil {
			return "", err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens[caller] = left[1:]
	return left[0], nil
}

const tokensAtOnce = 200

func spends(_ context.Context, b *keyBench) (operation, error) {
	tokens := newStock(func(ctx context.Context) ([]string, error) { return b.issue(ctx, tokensAtOnce) })
	return func(ctx context.Context, _ string, caller, _ int) error {
		t, err := tokens.take(ctx, caller)
		if err != nil {
			return err
		}
		_, err = b.do(ctx, flow.Token(&token.SpendCommand{Spend: token.Spend{Caller: b.caller(), Token: t,
			Purpose: "order", Operation: "bench.spend"}}), 1)
		return err
	}, nil
}

func works(_ context.Context, b *keyBench) (operation, error) {
	recorded, err := work.NewAnswer(201, nil, []byte(`{"order":"77"}`))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, run string, caller, n int) error {
		key := name(run, caller, n)
		answer, err := b.do(ctx, flow.Work(&work.BeginCommand{Caller: b.caller(),
			BeginParams: work.BeginParams{Scope: "bench", Key: key,
				Fingerprint: []byte("0123456789abcdef"), Lease: 30 * time.Second, Life: 24 * time.Hour}}), 1)
		if err != nil {
			return err
		}
		_, err = b.do(ctx, flow.Work(&work.CompleteCommand{Caller: b.caller(),
			Held:  work.Held{Scope: "bench", Key: key, Fence: answer.(work.Begun).Fence},
			State: work.Done, Answer: recorded}), 1)
		return err
	}, nil
}

func locks(_ context.Context, b *keyBench) (operation, error) {
	return func(ctx context.Context, _ string, caller, _ int) error {
		name := fmt.Sprint("bench:", caller)
		answer, err := b.do(ctx, flow.Lock(&lock.AcquireCommand{Caller: b.caller(),
			AcquireParams: lock.AcquireParams{Name: name,
				Holder: "bench", Lease: 30 * time.Second}}), 1)
		if err != nil {
			return err
		}
		_, err = b.do(ctx, flow.Lock(&lock.ReleaseCommand{Caller: b.caller(), Name: name,
			Fence: answer.(lock.Acquired).Fence}), 1)
		return err
	}, nil
}

func claimCalls(_ context.Context, b *keyBench) (operation, error) {
	return func(ctx context.Context, run string, caller, n int) error {
		res, err := b.client.Idempotency.ClaimKey(ctx, &idempotencyv1.ClaimKeyRequest{Key: name(run, caller, n)})
		if err == nil && res.GetExisted() {
			err = errors.New("a new key was claimed before")
		}
		return err
	}, nil
}

func issueCalls(_ context.Context, b *keyBench) (operation, error) {
	return func(ctx context.Context, _ string, _, _ int) error {
		_, err := b.client.Idempotency.IssueTokens(ctx, &idempotencyv1.IssueTokensRequest{Purpose: "order"})
		return err
	}, nil
}

func spendCalls(_ context.Context, b *keyBench) (operation, error) {
	tokens := newStock(func(ctx context.Context) ([]string, error) {
		res, err := b.client.Idempotency.IssueTokens(ctx,
			&idempotencyv1.IssueTokensRequest{Purpose: "order", Count: tokensAtOnce})
		return res.GetTokens(), err
	})
	return func(ctx context.Context, _ string, caller, _ int) error {
		t, err := tokens.take(ctx, caller)
		if err != nil {
			return err
		}
		_, err = b.client.Idempotency.SpendToken(ctx, &idempotencyv1.SpendTokenRequest{Token: t, Purpose: "order"})
		return err
	}, nil
}

func workCalls(_ context.Context, b *keyBench) (operation, error) {
	return func(ctx context.Context, run string, caller, n int) error {
		key := name(run, caller, n)
		res, err := b.client.Idempotency.Begin(ctx,
			&idempotencyv1.BeginRequest{Scope: "bench", Key: key, Fingerprint: []byte("0123456789abcdef")})
		if err != nil {
			return err
		}
		_, err = b.client.Idempotency.Complete(ctx,
			&idempotencyv1.CompleteRequest{Scope: "bench", Key: key, Fence: res.GetRun().GetFence(),
				Outcome: idempotencyv1.WorkOutcome_WORK_OUTCOME_DONE, Answer: &idempotencyv1.RecordedAnswer{Status: 201, Body: []byte(`{"order":"77"}`)}})
		return err
	}, nil
}

func lockCalls(_ context.Context, b *keyBench) (operation, error) {
	return func(ctx context.Context, _ string, caller, _ int) error {
		name := fmt.Sprint("bench-rpc:", caller)
		res, err := b.client.Locks.Acquire(ctx, &lockv1.AcquireRequest{Name: name, Wait: durationpb.New(0)})
		if err != nil {
			return err
		}
		_, err = b.client.Locks.Release(ctx, &lockv1.ReleaseRequest{Name: name, Fence: res.GetLock().GetFence()})
		return err
	}, nil
}

// verify holds what is in the database against what callers were told was done, by case.
func (b *keyBench) verify(ctx context.Context, done map[string]int64) error {
	var claims, spent, works, held int64
	if err := b.super.QueryRow(ctx, sql("keys")).Scan(&claims, &spent, &works, &held); err != nil {
		return err
	}
	for _, x := range []struct {
		what       string
		told, left int64
	}{{"claims", done["claim"] + done["claim-rpc"], claims}, {"tokens spent", done["spend"] + done["spend-rpc"], spent},
		{"works done", done["work"] + done["work-rpc"], works},
		{"locks that are held", 0, held}} {
		if x.told != x.left {
			return fmt.Errorf("%w: %s: callers were told of %d, there are %d", ErrFailed, x.what, x.told, x.left)
		}
	}
	return nil
}
