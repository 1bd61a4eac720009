package rpc_test

import (
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	idv1 "github.com/ledgerd/ledgerd/gen/ledgerd/id/v1"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	lockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1"
	"github.com/ledgerd/ledgerd/internal/access"
)

// resources has the names and ids of a tenant's resources, one of each kind.
type resources struct {
	asset, wallet, shop, world string // asset and account codes
	paid, held                 string // biz_no of a transfer and of a hold
	paidID, heldID             int64
	page                       string // a page token of accounts
	token                      string // a submit token
	claimed                    string // a claimed key in the scope "walk"
	fence                      int64  // of its claim
	work                       string // key of running work, in the scope "walk"
	workFence                  int64
	lock                       string // name of a lock
	lockFence                  int64
}

// Secret values that only responses have, not requests.
const (
	secretNote    = "nobody-else-may-read-this"
	secretBalance = "7777.77"
	secretRequest = "request-that-nobody-else-made"
	secretKey     = "whsec_" // how keys of endpoints begin
)

// resourceMakers create the resources of other services.
var resourceMakers []func(c *caller, x resources, requestID []string)

func ref(code, asset string) *ledgerv1.AccountRef {
	return &ledgerv1.AccountRef{Code: code, Asset: asset}
}

func posting(from, to, asset, amount string) []*ledgerv1.Posting {
	return []*ledgerv1.Posting{{From: from, To: to, Asset: asset, Amount: amount}}
}

// createResources creates a tenant and its resources.
func createResources(s *site, tenant string) (*caller, resources) {
	c := &caller{s, s.Key(tenant, "boss", access.Admin)}
	x := resources{asset: "COIN", wallet: tenant + ":wallet", shop: tenant + ":shop", world: tenant + ":world",
		paid: tenant + "-paid", held: tenant + "-held", lock: tenant + "-lock"}
	note := map[string]string{"note": secretNote}
	id := []string{"X-Request-Id", secretRequest}
	ok(c, "CreateAssets", &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: x.asset, Scale: 2}}},
		new(ledgerv1.CreateAssetsResponse), id...)
	ok(c, "CreateAccounts", &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{
		{Code: x.wallet, Asset: x.asset, Metadata: note}, {Code: x.shop, Asset: x.asset, Metadata: note},
		{Code: x.world, Asset: x.asset, Unbounded: true, Metadata: note}}}, new(ledgerv1.CreateAccountsResponse), id...)
	x.paidID = ok(c, "Transfer", &ledgerv1.TransferRequest{BizNo: x.paid, Metadata: note,
		Postings: posting(x.world, x.wallet, x.asset, secretBalance)},
		new(ledgerv1.TransferResponse), append(id, "Idempotency-Key", "furnish")...).GetTransfer().GetId()
	x.heldID = ok(c, "Hold", &ledgerv1.HoldRequest{BizNo: x.held, From: x.wallet, To: x.shop, Asset: x.asset,
		Amount: "1", Metadata: note},
		new(ledgerv1.HoldResponse), id...).GetHold().GetId()
	for _, more := range resourceMakers {
		more(c, x, id)
	}
	x.page = ok(c, "ListAccounts", &ledgerv1.ListAccountsRequest{PageSize: 1},
		new(ledgerv1.ListAccountsResponse)).GetNextPageToken()
	x.token = ok(c, "Idempotency.IssueTokens", &idempotencyv1.IssueTokensRequest{},
		new(idempotencyv1.IssueTokensResponse), id...).GetTokens()[0]
	x.claimed = tenant + "-claimed"
	x.fence = ok(c, "Idempotency.ClaimKey",
		&idempotencyv1.ClaimKeyRequest{Scope: "walk", Key: x.claimed, Owner: tenant, Result: secretNote},
		new(idempotencyv1.ClaimKeyResponse), id...).GetClaim().GetFence()
	x.work = tenant + "-work"
	x.workFence = ok(c, "Idempotency.Begin", &idempotencyv1.BeginRequest{Scope: "walk", Key: x.work},
		new(idempotencyv1.BeginResponse), id...).GetRun().GetFence()
	x.lockFence = ok(c, "Lock.Acquire", &lockv1.AcquireRequest{Name: x.lock, Holder: "boss"},
		new(lockv1.AcquireResponse), id...).GetLock().GetFence()
	if x.fence == 0 || x.workFence == 0 || x.lockFence == 0 || x.page == "" || x.paidID == 0 || x.heldID == 0 {
		s.T.Fatalf("%+v", x)
	}
	return c, x
}

// examples has requests of every method on a tenant's resources, by name and by id. A method without an example fails
// the tests that walk over all methods.
var examples = map[string]func(x resources) []proto.Message{
	"CreateAssets": func(x resources) []proto.Message {
		return all(&ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: x.asset, Scale: 2}}})
	},
	"ListAssets": func(resources) []proto.Message { return all(&ledgerv1.ListAssetsRequest{}) },
	"CreateAccounts": func(x resources) []proto.Message {
		return all(&ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{{Code: x.wallet, Asset: x.asset}}})
	},
	"GetAccount": func(x resources) []proto.Message {
		return all(&ledgerv1.GetAccountRequest{Account: ref(x.wallet, x.asset)})
	},
	"ListAccounts": func(x resources) []proto.Message {
		return all(&ledgerv1.ListAccountsRequest{}, &ledgerv1.ListAccountsRequest{Pattern: x.wallet},
			&ledgerv1.ListAccountsRequest{PageSize: 1, PageToken: x.page})
	},
	"UpdateAccount": func(x resources) []proto.Message {
		return all(&ledgerv1.UpdateAccountRequest{Account: ref(x.wallet, x.asset),
			Metadata: map[string]string{"touched": "yes"}})
	},
	"FreezeAccount": func(x resources) []proto.Message {
		return all(&ledgerv1.FreezeAccountRequest{Account: ref(x.wallet, x.asset)})
	},
	"UnfreezeAccount": func(x resources) []proto.Message {
		return all(&ledgerv1.UnfreezeAccountRequest{Account: ref(x.wallet, x.asset)})
	},
	"CloseAccount": func(x resources) []proto.Message {
		return all(&ledgerv1.CloseAccountRequest{Account: ref(x.shop, x.asset)})
	},
	"Transfer": func(x resources) []proto.Message {
		return all(&ledgerv1.TransferRequest{BizNo: "walk", Postings: posting(x.wallet, x.shop, x.asset, "1")},
			&ledgerv1.TransferRequest{BizNo: x.paid, Postings: posting(x.world, x.wallet, x.asset, "1")},
			&ledgerv1.TransferRequest{BizNo: "walk-2", DryRun: true, Postings: posting(x.wallet, x.shop, x.asset, "1")})
	},
	"TransferBatch": func(x resources) []proto.Message {
		items := []*ledgerv1.TransferBatchItem{{Transfer: &ledgerv1.TransferRequest{BizNo: "walk-3",
			Postings: posting(x.wallet, x.shop, x.asset, "1")}}}
		return all(&ledgerv1.TransferBatchRequest{Items: items},
			&ledgerv1.TransferBatchRequest{Items: items, AllOrNothing: true})
	},
	"Reverse": func(x resources) []proto.Message {
		return all(&ledgerv1.ReverseRequest{BizNo: "walk-4",
			Target: &ledgerv1.ReverseRequest_TransferId{TransferId: x.paidID}},
			&ledgerv1.ReverseRequest{BizNo: "walk-5",
				Target: &ledgerv1.ReverseRequest_TransferBizNo{TransferBizNo: x.paid}})
	},
	"Hold": func(x resources) []proto.Message {
		return all(&ledgerv1.HoldRequest{BizNo: "walk-6", From: x.wallet, To: x.shop, Asset: x.asset, Amount: "1"},
			&ledgerv1.HoldRequest{BizNo: x.held, From: x.wallet, To: x.shop, Asset: x.asset, Amount: "1"})
	},
	"Capture": func(x resources) []proto.Message {
		return all(&ledgerv1.CaptureRequest{BizNo: "walk-7", Hold: &ledgerv1.CaptureRequest_HoldId{HoldId: x.heldID}},
			&ledgerv1.CaptureRequest{BizNo: "walk-8", Hold: &ledgerv1.CaptureRequest_HoldBizNo{HoldBizNo: x.held}})
	},
	"Release": func(x resources) []proto.Message {
		return all(&ledgerv1.ReleaseRequest{Hold: &ledgerv1.ReleaseRequest_HoldId{HoldId: x.heldID}},
			&ledgerv1.ReleaseRequest{Hold: &ledgerv1.ReleaseRequest_HoldBizNo{HoldBizNo: x.held}})
	},
	"GetHold": func(x resources) []proto.Message {
		return all(&ledgerv1.GetHoldRequest{Hold: &ledgerv1.GetHoldRequest_HoldId{HoldId: x.heldID}},
			&ledgerv1.GetHoldRequest{Hold: &ledgerv1.GetHoldRequest_HoldBizNo{HoldBizNo: x.held}})
	},
	"ListHolds": func(x resources) []proto.Message {
		return all(&ledgerv1.ListHoldsRequest{}, &ledgerv1.ListHoldsRequest{From: x.wallet})
	},
	"GetTransfer": func(x resources) []proto.Message {
		return all(&ledgerv1.GetTransferRequest{Target: &ledgerv1.GetTransferRequest_TransferId{TransferId: x.paidID}},
			&ledgerv1.GetTransferRequest{Target: &ledgerv1.GetTransferRequest_TransferBizNo{TransferBizNo: x.paid}})
	},
	"ListTransfers": func(resources) []proto.Message {
		return all(&ledgerv1.ListTransfersRequest{},
			&ledgerv1.ListTransfersRequest{Metadata: map[string]string{"note": secretNote}})
	},
	"ListEntries": func(x resources) []proto.Message {
		return all(&ledgerv1.ListEntriesRequest{Account: ref(x.wallet, x.asset)})
	},
	"GetBalance": func(x resources) []proto.Message {
		return all(&ledgerv1.GetBalanceRequest{Account: ref(x.wallet, x.asset)})
	},
	"ListBalances": func(x resources) []proto.Message {
		return all(&ledgerv1.ListBalancesRequest{}, &ledgerv1.ListBalancesRequest{Pattern: x.wallet})
	},
	"TrialBalance": func(x resources) []proto.Message {
		return all(&ledgerv1.TrialBalanceRequest{}, &ledgerv1.TrialBalanceRequest{Asset: x.asset})
	},
	"Batch.Execute": func(x resources) []proto.Message {
		return all(execute(operation("",
			&ledgerv1.TransferRequest{BizNo: "walk-9", Postings: posting(x.wallet, x.shop, x.asset, "1")}),
			operation("", &ledgerv1.ReleaseRequest{Hold: &ledgerv1.ReleaseRequest_HoldId{HoldId: x.heldID}})))
	},
	"Idempotency.IssueTokens": func(resources) []proto.Message {
		return all(&idempotencyv1.IssueTokensRequest{Count: 2})
	},
	"Idempotency.SpendToken": func(x resources) []proto.Message {
		return all(&idempotencyv1.SpendTokenRequest{Token: x.token})
	},
	"Idempotency.ClaimKey": func(x resources) []proto.Message {
		return all(&idempotencyv1.ClaimKeyRequest{Scope: "walk", Key: x.claimed, Owner: "me"},
			&idempotencyv1.ClaimKeyRequest{Scope: "walk", Key: x.claimed, Owner: "me", DryRun: true})
	},
	"Idempotency.ClaimKeys": func(x resources) []proto.Message {
		return all(&idempotencyv1.ClaimKeysRequest{Claims: []*idempotencyv1.ClaimKeyRequest{{Scope: "walk",
			Key: x.claimed, Owner: "me"},
			{Scope: "walk", Key: "walk-11"}}})
	},
	"Idempotency.GetClaim": func(x resources) []proto.Message {
		return all(&idempotencyv1.GetClaimRequest{Scope: "walk", Key: x.claimed})
	},
	"Idempotency.DropClaim": func(x resources) []proto.Message {
		return all(&idempotencyv1.DropClaimRequest{Scope: "walk", Key: x.claimed, Fence: x.fence},
			&idempotencyv1.DropClaimRequest{Scope: "walk", Key: x.claimed, Owner: "theirs"})
	},
	"Id.Generate": func(resources) []proto.Message {
		return all(&idv1.GenerateRequest{}, &idv1.GenerateRequest{Kind: idv1.IdKind_ID_KIND_UUID_V7, Count: 2},
			&idv1.GenerateRequest{Kind: idv1.IdKind_ID_KIND_ORDER_NO, Prefix: "ORD", TimeZone: "Asia/Shanghai"})
	},
	"Id.Parse": func(resources) []proto.Message {
		return all(&idv1.ParseRequest{Id: "2WQ3TN2G40001"},
			&idv1.ParseRequest{Id: "01941f29-7c00-7aaa-9bbb-0123456789ab"})
	},
	"Lock.Acquire": func(x resources) []proto.Message {
		return all(&lockv1.AcquireRequest{Name: x.lock, Wait: durationpb.New(0)},
			&lockv1.AcquireRequest{Name: "walk-10"})
	},
	"Lock.Renew": func(x resources) []proto.Message {
		return all(&lockv1.RenewRequest{Name: x.lock, Fence: x.lockFence})
	},
	"Lock.Release": func(x resources) []proto.Message {
		return all(&lockv1.ReleaseRequest{Name: x.lock, Fence: x.lockFence})
	},
	"Lock.GetLock": func(x resources) []proto.Message {
		return all(&lockv1.GetLockRequest{Name: x.lock})
	},
	"Lock.ListLocks": func(x resources) []proto.Message {
		return all(&lockv1.ListLocksRequest{}, &lockv1.ListLocksRequest{Prefix: x.lock})
	},
	"Lock.Hold": func(x resources) []proto.Message {
		return all(&lockv1.HoldRequest{Name: x.lock, Wait: durationpb.New(0)})
	},
	"WatchEntries": func(resources) []proto.Message {
		return all(&ledgerv1.WatchEntriesRequest{Cursor: "0"}, &ledgerv1.WatchEntriesRequest{})
	},
}

func init() {
	maps.Copy(examples, map[string]func(x resources) []proto.Message{
		"Idempotency.Begin": func(x resources) []proto.Message {
			return all(&idempotencyv1.BeginRequest{Scope: "walk", Key: x.work})
		},
		"Idempotency.Extend": func(x resources) []proto.Message {
			return all(&idempotencyv1.ExtendRequest{Scope: "walk", Key: x.work, Fence: x.workFence})
		},
		"Idempotency.Complete": func(x resources) []proto.Message {
			return all(&idempotencyv1.CompleteRequest{Scope: "walk", Key: x.work, Fence: x.workFence,
				Outcome: idempotencyv1.WorkOutcome_WORK_OUTCOME_DONE})
		},
		"Idempotency.Abandon": func(x resources) []proto.Message {
			return all(&idempotencyv1.AbandonRequest{Scope: "walk", Key: x.work, Fence: x.workFence})
		},
		"Idempotency.GetWork": func(x resources) []proto.Message {
			return all(&idempotencyv1.GetWorkRequest{Scope: "walk", Key: x.work})
		},
		"Idempotency.ListWorks": func(resources) []proto.Message {
			return all(&idempotencyv1.ListWorksRequest{},
				&idempotencyv1.ListWorksRequest{State: idempotencyv1.WorkState_WORK_STATE_RUNNING},
				&idempotencyv1.ListWorksRequest{Scope: "walk"})
		},
		"Idempotency.ResolveWork": func(x resources) []proto.Message {
			return all(&idempotencyv1.ResolveWorkRequest{Scope: "walk", Key: x.work, Fence: x.workFence,
				Resolution: idempotencyv1.WorkResolution_WORK_RESOLUTION_FREE})
		},
	})
}

func all(m ...proto.Message) []proto.Message { return m }

func TestEveryMethodHasAnExample(t *testing.T) {
	left := maps.Clone(examples)
	for _, m := range methods(t) {
		made := examples[callName(m)]
		if made == nil {
			t.Errorf("%s has no example: tests that walk over all methods would skip it", m.FullName())
			continue
		}
		delete(left, callName(m))
		for _, r := range made(resources{}) {
			if r.ProtoReflect().Descriptor() != m.Input() {
				t.Errorf("the example of %s is a %s", m.FullName(), r.ProtoReflect().Descriptor().FullName())
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(left)) {
		t.Errorf("an example for %s, which does not exist", name)
	}
}
