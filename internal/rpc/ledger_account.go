package rpc

import (
	"cmp"
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

func (s *Ledger) CreateAssets(ctx context.Context, r *pb.CreateAssetsRequest) (*pb.CreateAssetsResponse, error) {
	return run(ctx, s.Mutations, createAssetsOperation, r)
}

var createAssetsOperation = register("ledger.create_assets",
	func(c *call, d *decoder, r *pb.CreateAssetsRequest) mutation[*pb.CreateAssetsResponse] {
		cmd := &ledger.CreateAssetsCommand{Caller: c.caller(),
			Assets: each(r.GetAssets(), func(a *pb.Asset) ledger.NewAsset {
				return ledger.NewAsset{Code: a.GetCode(), Scale: uint8(a.GetScale())}
			})}
		return newMutation(flow.Ledger(cmd), len(cmd.Assets),
			func(assets []ledger.Asset, _ bool) *pb.CreateAssetsResponse {
				return &pb.CreateAssetsResponse{Assets: each(assets, renderAsset)}
			})
	})

func (s *Ledger) CreateAccounts(ctx context.Context, r *pb.CreateAccountsRequest) (*pb.CreateAccountsResponse, error) {
	return run(ctx, s.Mutations, createAccountsOperation, r)
}

var createAccountsOperation = register("ledger.create_accounts",
	func(c *call, d *decoder, r *pb.CreateAccountsRequest) mutation[*pb.CreateAccountsResponse] {
		cmd := &ledger.CreateAccountsCommand{Caller: c.caller()}
		for i, a := range r.GetAccounts() {
			at := fmt.Sprintf("accounts[%d].", i)
			n := ledger.NewAccount{Code: d.code(at+"code", a.GetCode()), Asset: a.GetAsset(),
				Kind:     cmp.Or(kindNames[a.GetKind()], ledger.KindLiability),
				Min:      d.optionalDecimal(at+"min_balance", a.MinBalance),
				Max:      d.optionalDecimal(at+"max_balance", a.MaxBalance),
				Metadata: d.metadata(at+"metadata", a.GetMetadata())}
			switch {
			case a.GetUnbounded() && n.Min != nil:
				d.bad(at+"unbounded", "must not be set together with min_balance")
			case !a.GetUnbounded() && n.Min == nil:
				n.Min = new(amount.Decimal)
			}
			cmd.Accounts = append(cmd.Accounts, n)
		}
		return newMutation(flow.Ledger(cmd), len(cmd.Accounts),
			func(made ledger.CreatedAccounts, _ bool) *pb.CreateAccountsResponse {
				return &pb.CreateAccountsResponse{Accounts: eachOf(made.Accounts, renderAccount),
					ExistedCount: int32(made.Existed)}
			})
	})

func (s *Ledger) UpdateAccount(ctx context.Context, r *pb.UpdateAccountRequest) (*pb.UpdateAccountResponse, error) {
	return run(ctx, s.Mutations, updateAccountOperation, r)
}

const updateAccountName = "ledger.update_account"

var updateAccountOperation = register(updateAccountName,
	func(c *call, d *decoder, r *pb.UpdateAccountRequest) mutation[*pb.UpdateAccountResponse] {
		d.ref("account", r.GetAccount())
		d.metadata("metadata", r.GetMetadata())
		change := ledger.AccountChange{Min: d.optionalDecimal("min_balance", r.MinBalance), Unbounded: r.GetUnbounded(),
			Max: d.optionalDecimal("max_balance", r.MaxBalance), ClearMax: r.GetClearMaxBalance(),
			Metadata: r.GetMetadata()}
		if change.Min != nil && change.Unbounded {
			d.bad("unbounded", "must not be set together with min_balance")
		}
		if change.Max != nil && change.ClearMax {
			d.bad("clear_max_balance", "must not be set together with max_balance")
		}
		return updateAccount(c, r.GetAccount(), change,
			func(a *pb.Account) *pb.UpdateAccountResponse { return &pb.UpdateAccountResponse{Account: a} })
	})

func (s *Ledger) FreezeAccount(ctx context.Context, r *pb.FreezeAccountRequest) (*pb.FreezeAccountResponse, error) {
	return run(ctx, s.Mutations, freezeAccountOperation, r)
}

var freezeAccountOperation = register("ledger.freeze_account",
	func(c *call, d *decoder, r *pb.FreezeAccountRequest) mutation[*pb.FreezeAccountResponse] {
		return updateAccount(c, r.GetAccount(), ledger.AccountChange{State: ledger.Frozen},
			func(a *pb.Account) *pb.FreezeAccountResponse { return &pb.FreezeAccountResponse{Account: a} })
	})

func (s *Ledger) UnfreezeAccount(ctx context.Context,
	r *pb.UnfreezeAccountRequest) (*pb.UnfreezeAccountResponse, error) {
	return run(ctx, s.Mutations, unfreezeAccountOperation, r)
}

var unfreezeAccountOperation = register("ledger.unfreeze_account",
	func(c *call, d *decoder, r *pb.UnfreezeAccountRequest) mutation[*pb.UnfreezeAccountResponse] {
		return updateAccount(c, r.GetAccount(), ledger.AccountChange{State: ledger.Open},
			func(a *pb.Account) *pb.UnfreezeAccountResponse { return &pb.UnfreezeAccountResponse{Account: a} })
	})

func (s *Ledger) CloseAccount(ctx context.Context, r *pb.CloseAccountRequest) (*pb.CloseAccountResponse, error) {
	return run(ctx, s.Mutations, closeAccountOperation, r)
}

var closeAccountOperation = register("ledger.close_account",
	func(c *call, d *decoder, r *pb.CloseAccountRequest) mutation[*pb.CloseAccountResponse] {
		return updateAccount(c, r.GetAccount(), ledger.AccountChange{State: ledger.Closed},
			func(a *pb.Account) *pb.CloseAccountResponse { return &pb.CloseAccountResponse{Account: a} })
	})

// updateAccount is the common mutation of the four calls that change an account.
func updateAccount[R proto.Message](c *call, r *pb.AccountRef, change ledger.AccountChange,
	wrap func(*pb.Account) R) mutation[R] {
	cmd := &ledger.UpdateAccountCommand{Caller: c.caller(), Code: r.GetCode(), Asset: r.GetAsset(), Change: change}
	return newMutation(flow.Ledger(cmd), 1, func(a *ledger.Account, _ bool) R { return wrap(renderAccount(a)) })
}

var kinds = map[string]pb.AccountKind{
	ledger.KindAsset:     pb.AccountKind_ACCOUNT_KIND_ASSET,
	ledger.KindLiability: pb.AccountKind_ACCOUNT_KIND_LIABILITY,
	ledger.KindEquity:    pb.AccountKind_ACCOUNT_KIND_EQUITY,
	ledger.KindIncome:    pb.AccountKind_ACCOUNT_KIND_INCOME,
	ledger.KindExpense:   pb.AccountKind_ACCOUNT_KIND_EXPENSE,
}

var kindNames = inverse(kinds)

var accountStates = map[string]pb.AccountState{
	ledger.Open: pb.AccountState_ACCOUNT_STATE_OPEN, ledger.Frozen: pb.AccountState_ACCOUNT_STATE_FROZEN,
	ledger.Closed: pb.AccountState_ACCOUNT_STATE_CLOSED,
}

func renderAccount(a *ledger.Account) *pb.Account {
	r := &pb.Account{Code: a.Code, Asset: a.Asset, Kind: kinds[a.Kind], State: accountStates[a.State],
		Balance: a.Format(a.Balance), Held: a.Format(a.Held), Version: a.Version, Metadata: a.Metadata,
		CreateTime: timestamp(a.CreatedAt), LastEntryTime: timestamp(a.LastEntryAt)}
	if available, bounded := a.Available(); bounded {
		r.Available = a.Format(available)
	}
	r.MinBalance, r.MaxBalance = limitOf(a, a.Min), limitOf(a, a.Max)
	return r
}

func renderAsset(a ledger.Asset) *pb.Asset { return &pb.Asset{Code: a.Code, Scale: int32(a.Scale)} }

func limitOf(a *ledger.Account, n *amount.Int) *string {
	if n == nil {
		return nil
	}
	s := a.Format(*n)
	return &s
}
