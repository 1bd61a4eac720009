package verify_test

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/verify"
	"github.com/ledgerd/ledgerd/internal/verify/verifytest"
)

// resolved begins a statement that resolves flags.
const resolved = `update payment_flags set state = 'resolved', resolved_by = 'x', resolved_request_id = 'x',
	resolved_at = now(), `

// paymentTamperings are changes of payments that a superuser with disabled triggers could make.
var paymentTamperings = []struct {
	name, sql string
	checks    []string
	named     []string
}{
	{"a payment is made smaller", `update payment_payments set amount = 900 where out_trade_no = 'open'`,
		[]string{"payment_payments_belong"}, []string{"out_trade_no=open", "amount=900 (should be 1000)"}},
	{"a payment is moved to another order", `update payment_payments set order_no = 'other'
		where out_trade_no = 'open'`,
		[]string{"payment_payments_belong"}, []string{"out_trade_no=open", `problem="there is no such order"`}},
	{"a payment is deleted", `delete from payment_payments where out_trade_no = 'open'`,
		[]string{"payment_instances_belong"}, []string{"key=open", "machine=payment"}},
	{"the instance of a payment is deleted", `delete from machine_instances where machine = 'payment' and key = 'late'`,
		[]string{"machine_instances_match_history", "payment_payments_belong"},
		[]string{`problem="it has no instance"`}},
	{"a payment succeeds without money", `update machine_instances set state = 'succeeded' where machine = 'payment'
		and key = 'gone'`,
		[]string{"machine_instances_match_history", "payment_calls_belong", "payment_payments_match_transactions"},
		[]string{"out_trade_no=gone", `problem="there is no such transaction"`, `problem="a call is due"`}},
	{"a transaction is deleted", `delete from payment_transactions where transaction_id = 't-good'`,
		[]string{"payment_notices_match_transactions", "payment_payments_match_transactions", "payment_refunds_belong"},
		[]string{`problem="there is no such transaction"`, "notify_id=n-t-good"}},
	{"a transaction is made greater", `update payment_transactions set amount = 1100 where transaction_id = 't-good'`,
		[]string{"payment_payments_match_transactions", "payment_transactions_belong",
			"payment_transactions_match_transfers"},
		[]string{"amount=1100 (should be 1000)", `problem="the transfer is of other money"`}},
	{"a transaction goes to another account", `update payment_transactions set account = 'loss'
		where transaction_id = 't-good'`,
		[]string{"payment_payments_match_transactions", "payment_transactions_match_transfers"},
		[]string{"account=loss (should be shop)"}},
	{"a notice is deleted with its name", `delete from payment_notices where notify_id = 'n-t-good'; delete
		from payment_notice_names where notify_id = 'n-t-good'`,
		[]string{"payment_transactions_belong"}, []string{"transaction_id=t-good", `problem="no notice reported it"`}},
	{"a notice is forgotten by name", `delete from payment_notice_names where notify_id = 'n-t-none'`,
		[]string{"payment_notices_belong"}, []string{"notify_id=n-t-none", `problem="it has no name"`}},
	{"the transfer of a payment gets another number", `update ledger_transfers set biz_no = 'other'
		where biz_no = 'pay/bank/t-good'`,
		[]string{"payment_transactions_match_transfers"},
		[]string{"biz_no=pay/bank/t-good", `problem="there is no such transfer"`}},
	{"the transfer of a flag gets another number", `update ledger_transfers set biz_no = 'other' where biz_no ~ '^flag/'
		and transfer_id =
			(select max(transfer_id) from ledger_transfers where biz_no ~ '^flag/')`,
		[]string{"payment_flags_belong", "payment_transactions_match_transfers"},
		[]string{`problem="there is no such transfer"`, "kind=second_transaction"}},
	{"flagged money is moved unseen", `update payment_transactions set account = 'loss'
		where transaction_id = 't-late'`,
		[]string{"payment_transactions_match_transfers"}, []string{"account=loss (should be suspense)"}},
	{"a flag is deleted", `delete from payment_flags where kind = 'late' and transaction_id = 't-late'`,
		[]string{"payment_transactions_belong", "payment_transactions_match_transfers"},
		[]string{`problem="it paid nothing, and it was not flagged"`}},
	{"a flag is made smaller", `update payment_flags set amount = 1 where kind = 'late' and transaction_id = 't-late'`,
		[]string{"payment_flags_belong"}, []string{"amount=1 (should be 1000)"}},
	{"an acceptance is forgotten", `update payment_flags set state = 'open', resolution = null, resolved_by = null,
			resolved_request_id = null, resolved_at = null, note = null where transaction_id = 't-less'`,
		[]string{"payment_payments_match_transactions", "payment_transactions_match_transfers"},
		[]string{"amount=900 (should be 1000)", "account=shop (should be suspense)"}},
	{"flagged money is accepted by hand", resolved +
		`resolution = 'accept' where kind = 'late' and transaction_id = 't-late'`,
		[]string{"payment_flags_belong", "payment_transactions_match_transfers"},
		[]string{`problem="its payment has not succeeded by it"`}},
	{"a flag is resolved by a refund that failed",
		resolved + `resolution = 'refund', refund_no = 'r-late' where kind = 'late' and transaction_id = 't-late'`,
		[]string{"payment_flags_belong"}, []string{"transaction_id=t-late", `problem="its refund has failed"`}},
	{"flagged money is given back by hand", `update payment_transactions set refunded = amount
		where transaction_id = 't-late'`,
		[]string{"payment_flags_belong", "payment_transactions_match_refunds"},
		[]string{`problem="its money has been given back"`}},
	{"the call about an unknown payment is forgotten", `delete from payment_calls where number = 'none'`,
		[]string{"payment_calls_belong", "payment_notices_match_transactions"},
		[]string{`problem="no call is due that would take its money"`}},
	{"a refund is forgotten", `update payment_transactions set refunded = 0 where transaction_id = 't-back'`,
		[]string{"payment_transactions_match_refunds"}, []string{"refunded=0 (should be 800)"}},
	{"an open refund is forgotten", `update payment_transactions set refunding = 0 where transaction_id = 't-good'`,
		[]string{"payment_transactions_match_refunds"}, []string{"refunding=0 (should be 400)"}},
	{"the flag of what a console gave back is deleted", `delete from payment_flags where kind = 'unknown_refund'
		and transaction_id = 't-good'`,
		[]string{"payment_console_refunds_belong", "payment_console_refunds_match_flags",
			"payment_notices_match_flags"},
		[]string{`problem="there is no such flag"`, "given=300 (should be 0)"}},
	{"the flag of what a console gave back is made smaller", `update payment_flags set amount = 200
		where kind = 'unknown_refund' and transaction_id = 't-good'`,
		[]string{"payment_console_refunds_match_flags"},
		[]string{"gateway_refund_id=by-hand", "given=300 (should be 200)"}},
	{"the flag of what a console gave back is moved to another currency", `update payment_flags set currency = 'USD'
		where kind = 'unknown_refund'
			and transaction_id = 't-good'`,
		[]string{"payment_console_refunds_match_flags"}, []string{`problem="money is flagged in another currency"`}},
	{"what a console gave back is forgotten", `update payment_console_refunds set failed = true
		where transaction_id = 't-good'`,
		[]string{"payment_console_refunds_match_flags"}, []string{"given=0 (should be 300)"}},
	{"a console refund is deleted", `delete from payment_console_refunds where transaction_id = 't-good'`,
		[]string{"payment_flags_belong", "payment_notices_match_flags"},
		[]string{`problem="there is no such flag"`, `problem="there is no such console refund"`}},
	{"a console refund is moved to another transaction", `update payment_console_refunds set transaction_id = 't77'
		where transaction_id = 't-good'`,
		[]string{"payment_console_refunds_belong"}, []string{`problem="no notice reported it"`}},
	{"the flag of a console refund is moved to another transaction", `update payment_flags set transaction_id = 't77'
		where kind = 'unknown_refund'
			and transaction_id = 't-good'`,
		[]string{"payment_console_refunds_belong"}, []string{`problem="its flag is about something else"`}},
	{"a console refund has no name", `delete from payment_notice_names where notify_id = 'unknown_refund/by-hand'`,
		[]string{"payment_console_refunds_belong"}, []string{`problem="its name does not lead to it"`}},
	{"a console refund has the flag of another one", `update payment_console_refunds set flag_id = (select min(flag_id)
		from payment_flags)
			where transaction_id = 't-good'`,
		[]string{"payment_console_refunds_belong"}, []string{`problem="its flag is about something else"`}},
	{"what a failed refund gave back is forgotten", `update payment_refunds set given = 0 where refund_no = 'r-late'`,
		[]string{"payment_refunds_match_flags"}, []string{"refund_no=r-late", "given=0 (should be 200)"}},
	{"the flag of what a failed refund gave back is deleted", `delete from payment_flags where about_refund = 'r-late'`,
		[]string{"payment_notices_match_flags", "payment_refunds_match_flags"},
		[]string{"refund_no=r-late", "given=200 (should be 0)"}},
	{"a refund is made smaller", `update payment_refunds set amount = 300 where refund_no = 'r-good'`,
		[]string{"payment_refunds_match_holds", "payment_transactions_match_refunds"},
		[]string{"amount=400 (should be 300)", "refunding=400 (should be 300)"}},
	{"the hold of a refund was not captured", `update ledger_holds set state = 'released', captured = 0
		where biz_no = 'refund/r-back'`,
		[]string{"ledger_holds_match_captures", "payment_refunds_match_holds"},
		[]string{"hold_state=released (should be captured)"}},
	{"the flag of a refund without a hold is deleted", `delete from payment_flags where about_refund = 'r-gone'`,
		[]string{"payment_notices_match_flags", "payment_refunds_match_flags"}, []string{"refund_no=r-gone"}},
	{"a refund without a hold is booked by hand", `update payment_refunds set booked = amount
		where refund_no = 'r-gone'`,
		[]string{"payment_refunds_match_flags", "payment_refunds_match_holds"},
		[]string{"refund_no=r-gone", `problem="no transfer gave all of it back"`}},
	{"what a refund has booked is forgotten", `update payment_refunds set booked = 0 where refund_no = 'r-back'`,
		[]string{"payment_refunds_match_flags"}, []string{"refund_no=r-back"}},
	{"the transfer of a refund gets another number", `update ledger_transfers set biz_no = 'other'
		where biz_no = 'refund/r-back/paid'`,
		[]string{"payment_refunds_match_holds"},
		[]string{"refund_no=r-back", `problem="no transfer gave all of it back"`}},
	{"a refund is moved to another currency", `update payment_refunds set currency = 'USD' where refund_no = 'r-good'`,
		[]string{"payment_refunds_belong"}, []string{"currency=USD (should be CNY)"}},
	{"a refund is deleted", `delete from payment_refunds where refund_no = 'r-good'`,
		[]string{"payment_instances_belong", "payment_transactions_match_refunds"},
		[]string{"key=r-good", "refunding=400 (should be 0)"}},
	{"a call is deleted", `delete from payment_calls where number = 'open'`,
		[]string{"payment_calls_belong"}, []string{"number=open", `problem="no call is due"`}},
	{"the flag of an unknown payment is not due", `update payment_calls set call = 'query' where number = 'none'`,
		[]string{"payment_calls_belong"}, []string{"number=none", `problem="another call is due"`}},
	{"a payment of a cancelled order stays open", `update payment_calls set call = 'query' where number = 'gone'`,
		[]string{"payment_calls_close"}, []string{"number=gone", "call=query (should be close)"}},
}

func TestTamperingWithPaymentsIsFoundAndNamed(t *testing.T) {
	t.Parallel()
	filled := pgtest.New(t)
	t.Run("before", func(t *testing.T) {
		verifytest.New(t, filled).Payments()
		before, err := verify.Run(t.Context(), pgtest.Pool(t, filled.AllDSN), verify.Options{})
		if err != nil || !before.OK() {
			t.Errorf("%v, %v", before.Violations, err)
		}
	})
	for _, c := range paymentTamperings {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := filled.Copy(t)
			db.SkipChecks()
			conn := connect(t, db.SuperDSN)
			if _, err := conn.Exec(t.Context(), "set session_replication_role = replica; "+c.sql); err != nil {
				t.Fatal(err)
			}
			got, err := verify.Run(t.Context(), pgtest.Pool(t, db.AllDSN), verify.Options{})
			if err != nil {
				t.Fatal(err)
			}
			expect(t, got, c.checks, c.named)
		})
	}
}
