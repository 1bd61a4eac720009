package rpc

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	salev1 "github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// patientAdmission has a wait that is long enough for a slow machine.
func patientAdmission() *Admission {
	a := NewAdmission(nil)
	a.maxWait = time.Minute
	return a
}

// enterLater enqueues a call. The channel receives the result of enter.
func (a *Admission) enterLater(ctx context.Context, t *testing.T, tenant int32, bytes int) (*admissionCall,
	<-chan error) {
	t.Helper()
	x := &admissionCall{tenant: tenant}
	done := make(chan error, 1)
	go func() { done <- a.enter(ctx, x, bytes) }()
	for tick := time.NewTicker(time.Millisecond); ; <-tick.C {
		a.mu.Lock()
		inLine := x.lane != nil
		a.mu.Unlock()
		if inLine {
			return x, done
		}
	}
}

// held returns the bytes in flight and the number of lanes.
func (a *Admission) held() (bytes, tenants int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used, len(a.lanes)
}

func (a *Admission) mustEnter(t *testing.T, tenant int32, bytes int) *admissionCall {
	t.Helper()
	x := &admissionCall{tenant: tenant}
	if err := a.enter(t.Context(), x, bytes); err != nil {
		t.Fatal(err)
	}
	return x
}

func TestCallsBeyondTheTenantsLimitWaitThenAreBusy(t *testing.T) {
	t.Parallel()
	a := NewAdmission(nil)
	first := a.mustEnter(t, 1, 100*admitTenantBytes) // a lone call may have any size
	other := a.mustEnter(t, 2, admitTenantBytes/2)
	x := &admissionCall{tenant: 1}
	begin := time.Now()
	err := a.enter(t.Context(), x, 1)
	if f := fault.Of(err); f == nil || f.Reason != fault.Busy || f.RetryAfter != admitRetry {
		t.Errorf("above the limit: %v", err)
	}
	if waited := time.Since(begin); waited < admitWait {
		t.Errorf("refused after only %v: a caller that retries immediately costs as much CPU as a call", waited)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.enter(ctx, &admissionCall{tenant: 1}, 1); !fault.Is(err, fault.NotRun) {
		t.Errorf("cancelled call: %v", err)
	}
	a.maxWait = time.Minute
	second, admitted := a.enterLater(t.Context(), t, 1, 1)
	a.release(first)
	if err := <-admitted; err != nil {
		t.Errorf("after the release: %v", err)
	}
	for _, x := range []*admissionCall{second, other, x, first} { // a second release is allowed
		a.release(x)
	}
	if bytes, tenants := a.held(); bytes != 0 || tenants != 0 {
		t.Errorf("%d bytes of %d tenants are left", bytes, tenants)
	}
}

func TestTenantsAreAdmittedInTurn(t *testing.T) {
	t.Parallel()
	a := patientAdmission()
	var full []*admissionCall
	for tenant := range int32(admitBytes / admitTenantBytes) {
		full = append(full, a.mustEnter(t, 10+tenant, admitTenantBytes))
	}
	var mu sync.Mutex
	var order []int32
	var all sync.WaitGroup
	const each = admitTenantBytes / 4
	for _, tenant := range []int32{1, 1, 1, 2, 3, 2} {
		x, admitted := a.enterLater(t.Context(), t, tenant, each)
		all.Go(func() {
			if err := <-admitted; err != nil {
				t.Errorf("tenant %d: %v", x.tenant, err)
			}
			mu.Lock()
			order = append(order, x.tenant)
			mu.Unlock()
			a.release(x)
		})
	}
	// Free one quarter, so that calls are admitted one at a time.
	a.grow(full[0], 0)
	a.decoded(full[0], admitTenantBytes-each)
	all.Wait()
	want := []int32{1, 2, 3, 1, 2, 1}
	for i := range want {
		if order[i] != want[i] {
			t.Fatalf("admitted %v, want %v", order, want)
		}
	}
}

func TestCancelledCallUnblocksLaterCalls(t *testing.T) {
	t.Parallel()
	a := patientAdmission()
	a.mustEnter(t, 1, admitTenantBytes/2)
	ctx, cancel := context.WithCancel(t.Context())
	_, large := a.enterLater(ctx, t, 1, admitTenantBytes)
	_, admitted := a.enterLater(t.Context(), t, 1, admitTenantBytes/2)
	cancel()
	if err := <-large; !fault.Is(err, fault.NotRun) {
		t.Errorf("cancelled call: %v", err)
	}
	if err := <-admitted; err != nil {
		t.Errorf("next call: %v", err)
	}
}

func TestAdmittedCallGrowsWhileThereIsRoom(t *testing.T) {
	t.Parallel()
	a := patientAdmission()
	x, y := a.mustEnter(t, 1, 1000), a.mustEnter(t, 1, 1000)
	if !a.grow(x, admitTenantBytes-1000) || a.grow(y, 1001) || !a.grow(y, 10) {
		t.Error("grow does not apply the limit")
	}
	a.decoded(x, 5000) // the actual size
	if bytes, _ := a.held(); bytes != 6000 || !a.grow(y, 2000) {
		t.Errorf("%d bytes in flight", bytes)
	}
}

func TestOneTenantGetsHalfOfTheDecodingSlots(t *testing.T) {
	t.Parallel()
	a := patientAdmission()
	turns := cap(a.decoding)
	var mine []*admissionCall
	for range turns / 2 {
		x := a.mustEnter(t, 1, 1)
		if err := a.decode(t.Context(), x); err != nil {
			t.Fatal(err)
		}
		mine = append(mine, x)
	}
	next := a.mustEnter(t, 1, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := a.decode(ctx, next); !fault.Is(err, fault.NotRun) {
		t.Errorf("more than half of the slots: %v", err)
	}
	other := a.mustEnter(t, 2, 1)
	if err := a.decode(t.Context(), other); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	a.release(mine[0]) // without decoded
	if err := a.decode(t.Context(), next); err != nil {
		t.Errorf("with a free slot: %v", err)
	}
	for _, x := range append(mine, next, other) {
		a.decoded(x, 100)
		a.release(x)
	}
	if bytes, tenants := a.held(); bytes != 0 || tenants != 0 || len(a.decoding) != 0 {
		t.Errorf("%d bytes of %d tenants and %d slots are left", bytes, tenants, len(a.decoding))
	}
}

// Under concurrent calls, ends and cancellations, no limit is exceeded and everything is released.
func TestAdmissionNeverExceedsItsLimits(t *testing.T) {
	t.Parallel()
	a := patientAdmission()
	var now, admitted, gaveUp atomic.Int64
	var perTenant [6]atomic.Int64
	var all sync.WaitGroup
	for n := range 60 {
		all.Go(func() {
			tenant := int32(n % len(perTenant))
			for range 100 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(4))*time.Millisecond)
				x, size := &admissionCall{tenant: tenant}, 1+rand.IntN(admitTenantBytes)
				if err := a.enter(ctx, x, size); err != nil {
					gaveUp.Add(1) // and holds nothing
				} else {
					admitted.Add(1)
					now.Add(int64(size))
					if perTenant[tenant].Add(int64(size)) > admitTenantBytes || now.Load() > admitBytes {
						t.Error("a limit was exceeded")
					}
					_ = a.decode(ctx, x)
					runtime.Gosched()
					perTenant[tenant].Add(int64(-size))
					now.Add(int64(-size))
					a.release(x)
				}
				cancel()
			}
		})
	}
	all.Wait()
	if bytes, tenants := a.held(); bytes != 0 || tenants != 0 || a.waiting() != 0 || len(a.decoding) != 0 ||
		len(a.ring) != 0 {
		t.Errorf("%d bytes of %d tenants are left, %d calls wait", bytes, tenants, a.waiting())
	}
	if admitted.Load() == 0 || gaveUp.Load() == 0 {
		t.Errorf("%d calls were admitted, %d were cancelled", admitted.Load(), gaveUp.Load())
	}
}

func TestFootprintCountsEachItem(t *testing.T) {
	t.Parallel()
	r := &ledgerv1.TransferBatchRequest{}
	for range 1000 {
		r.Items = append(r.Items, &ledgerv1.TransferBatchItem{})
	}
	if got := footprint(r); got < 1000*perCommand || got > 1100*perCommand {
		t.Errorf("1,000 empty items: %d bytes", got)
	}
}

// A request that turns out larger than estimated when it is decoded needs room, unless it is the only one of its
// tenant.
func TestDecodedCallNeedsRoomForTheRest(t *testing.T) {
	t.Parallel()
	a := patientAdmission()
	lone := a.mustEnter(t, 1, 1000)
	if err := a.decoded(lone, 2*admitTenantBytes); err != nil {
		t.Errorf("a lone call: %v", err)
	}
	first, second := a.mustEnter(t, 2, 1000), a.mustEnter(t, 2, 1000)
	if err := a.decoded(second, admitTenantBytes); !fault.Is(err, fault.Busy) {
		t.Errorf("above the tenant's share: %v", err)
	}
	if err := a.decoded(first, 5000); err != nil {
		t.Errorf("within the share: %v", err)
	}
}

// Calls of many small items are not admitted, decoded, and then refused because they need more than estimated.
func TestTheEstimateOfASmallItemIsEnough(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]proto.Message{
		"transfers": &ledgerv1.TransferBatchRequest{Items: slices.Repeat([]*ledgerv1.TransferBatchItem{{
			Transfer: &ledgerv1.TransferRequest{BizNo: "b1234", Postings: []*ledgerv1.Posting{
				{From: "a1", To: "a2", Asset: "CNY", Amount: "1"}}}}}, 1000)},
		"grabs": &salev1.GrabManyRequest{Sale: "s",
			Grabs: slices.Repeat([]*salev1.Grab{{Buyer: "customer-100001"}}, 1000)},
	} {
		in := &intake{}
		if size := proto.Size(r); in.estimate(size) < footprint(r) {
			t.Errorf("%s of %d bytes: %d are estimated, and %d needed", name, size, in.estimate(size), footprint(r))
		}
	}
}
