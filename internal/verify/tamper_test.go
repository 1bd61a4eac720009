package verify_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/db/checks"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/verify"
	"github.com/ledgerd/ledgerd/internal/verify/verifytest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// SQL for a wallet, one of its entries, and transfers, used in the cases.
const (
	wallet = `(select account_id from ledger_accounts where tenant_id = 1 and code = 'user:1:wallet')`
	fees   = `(select account_id from ledger_accounts where tenant_id = 1 and code = 'fees')`
	fund   = `(select transfer_id from ledger_transfers where tenant_id = 1 and biz_no = 'fund-1')`
	pay    = `(select transfer_id from ledger_transfers where tenant_id = 1 and biz_no = 'pay-1')`
	keyed  = `(select transfer_id from ledger_transfers where tenant_id = 1 and biz_no = 'keyed-1')`
)

// tamperings are changes that a superuser with disabled triggers could make. Each lists the checks that must
// detect it and the texts that their violations must contain; {x} stands for the result of "select x".
var tamperings = []struct {
	name   string
	sql    string
	checks []string
	named  []string
}{
	{"an amount is changed", `alter table ledger_entries drop constraint ledger_entries_sum_check;
		update ledger_entries set amount = amount + 1 where tenant_id = 1
		and account_id = ` + fees + ` and version = 1`,
		[]string{"ledger_accounts_match_entries", "ledger_entries_chain", "ledger_transfers_balance",
			"ledger_transfers_have_entries"},
		[]string{"tenant=demo", "account_id={" + fees + "}", "transfer_id={" + pay + "}", "code=fees", "biz_no=pay-1",
			"balance=105 (should be 106)", "balance_after=5 (should be 6)", "total=1 (should be 0)"}},
	{"an amount is changed with its balances", `update ledger_entries set amount = amount + 1,
		balance_after = balance_after + 1
		where tenant_id = 1 and account_id = ` + fees + ` and version = 1`,
		[]string{"ledger_accounts_match_entries", "ledger_entries_chain", "ledger_transfers_balance",
			"ledger_transfers_have_entries"},
		[]string{"balance_before=5 (should be 6)"}},
	{"an entry is deleted", `delete from ledger_entries where tenant_id = 1
		and account_id = ` + wallet + ` and version = 2`,
		[]string{"ledger_accounts_match_entries", "ledger_entries_chain", "ledger_transfers_balance",
			"ledger_transfers_have_entries"},
		[]string{"version=3 (should be 2)", "account_id={" + wallet + "}", "transfer_id={" + pay + "}"}},
	{"the newest entry is deleted", `delete from ledger_entries where tenant_id = 1
		and account_id = ` + fees + ` and version = 2`,
		[]string{"ledger_accounts_match_entries", "ledger_transfers_balance", "ledger_transfers_have_entries"},
		[]string{"version=2 (should be 1)", "balance=105 (should be 5)"}},
	{"a balance is changed", `update ledger_accounts set balance = balance + 100 where tenant_id = 1 and code = 'fees'`,
		[]string{"ledger_accounts_match_entries", "ledger_assets_balance"},
		[]string{"code=fees", "balance=205 (should be 105)", "balance=100 (should be 0)"}},
	{"money is moved between balances", `update ledger_accounts set balance = balance + case code when 'fees' then -5
		else 5 end
		where tenant_id = 1 and code in ('fees', 'user:2:wallet')`,
		[]string{"ledger_accounts_match_entries"},
		[]string{"code=fees", "code=user:2:wallet", "balance=100 (should be 105)"}},
	{"a transfer is deleted", `delete from ledger_transfers where tenant_id = 1 and biz_no = 'fund-1'`,
		[]string{"ledger_entries_belong"}, []string{`problem="there is no such transfer"`, "account_id={" + wallet +
			"}", "version=1"}},
	{"a transfer is deleted with its entries", `create temp table gone as select ` + fund + ` as id;
		delete from ledger_entries where tenant_id = 1 and transfer_id = (select id from gone);
		delete from ledger_transfers where tenant_id = 1 and transfer_id = (select id from gone)`,
		[]string{"ledger_accounts_match_entries", "ledger_entries_chain"},
		[]string{"version=2 (should be 1)", "balance_before=10000 (should be 0)"}},
	{"an account is deleted", `delete from ledger_accounts where tenant_id = 1 and code = 'fees'`,
		[]string{"ledger_assets_balance", "ledger_entries_belong"},
		[]string{`problem="there is no such account"`, "balance=-105 (should be 0)"}},
	{"what is held is changed", `update ledger_accounts set held = 0 where tenant_id = 1 and code = 'user:1:wallet'`,
		[]string{"ledger_accounts_match_holds"}, []string{"held=0 (should be 1499)"}},
	{"a hold is made smaller", `update ledger_holds set amount = amount - 100 where tenant_id = 1
		and biz_no = 'hold-1'`,
		[]string{"ledger_accounts_match_holds"}, []string{"held=1499 (should be 1399)"}},
	{"a hold says that more was captured", `update ledger_holds set captured = captured + 1 where tenant_id = 1
		and biz_no = 'hold-1'`,
		[]string{"ledger_accounts_match_holds", "ledger_holds_match_captures"},
		[]string{"biz_no=hold-1", "captured=502 (should be 501)"}},
	{"a hold lives on after its capture", `update ledger_holds set state = 'held', closed_at = null where tenant_id = 1
		and biz_no = 'hold-2'`,
		[]string{"ledger_holds_match_captures"}, []string{"biz_no=hold-2", "state=held"}},
	{"a released hold looks captured", `update ledger_holds set state = 'captured' where tenant_id = 1
		and biz_no = 'hold-3'`,
		[]string{"ledger_holds_match_captures"}, []string{"biz_no=hold-3", "state=captured"}},
	{"a hold is deleted", `delete from ledger_holds where tenant_id = 1 and biz_no = 'hold-1'`,
		[]string{"ledger_accounts_match_holds", "ledger_transfers_belong"},
		[]string{"held=1499 (should be 0)", `problem="there is no hold that it captured from"`}},
	{"a hold expires unseen", `update ledger_accounts set next_expiry_at = null where tenant_id = 1
		and code = 'user:1:wallet'`,
		[]string{"ledger_accounts_match_holds"}, []string{"first_expiry_at="}},
	{"a hold is moved to an account that is not there", `update ledger_holds set account_id = 77 where tenant_id = 1
		and biz_no = 'hold-3'`,
		[]string{"ledger_holds_belong"}, []string{"account_id=77"}},
	{"an entry is backdated", `update ledger_entries set recorded_at = recorded_at - interval '1 day'
		where tenant_id = 1 and account_id = ` + fees + ` and version = 2`,
		[]string{"ledger_accounts_match_entries", "ledger_entries_belong", "ledger_entries_chain"},
		[]string{"version=2", "transfer_id={" + keyed + "}"}},
	{"a transfer is backdated with its entries", `update ledger_entries set recorded_at = recorded_at - interval '1 day'
			where tenant_id = 1 and transfer_id = ` + pay + `;
		update ledger_transfers set recorded_at = recorded_at - interval '1 day'
			where tenant_id = 1 and biz_no = 'pay-1'`,
		[]string{"ledger_entries_chain", "ledger_transfers_belong"}, []string{"biz_no=pay-1"}},
	{"a transfer's effective time is changed", `update ledger_transfers set effective_at = now() where tenant_id = 1
		and biz_no = 'pay-1'`,
		[]string{"ledger_entries_belong"}, []string{"effective_at="}},
	{"an entry is moved to another account", `update ledger_entries set account_id = ` + fees + `, version = 3
		where tenant_id = 1 and account_id = ` + wallet + ` and version = 2`,
		[]string{"ledger_accounts_match_entries", "ledger_entries_chain"},
		[]string{"account_id={" + wallet + "}", "account_id={" + fees + "}", "balance_before=10000 (should be 105)"}},
	{"an entry is moved to another transfer", `update ledger_entries set transfer_id = ` + keyed + `
		where tenant_id = 1 and account_id = ` + wallet + ` and version = 2`,
		[]string{"ledger_entries_belong", "ledger_transfers_balance", "ledger_transfers_have_entries"},
		[]string{"biz_no=keyed-1"}},
	{"a balanced pair of entries is forged", forgedPair,
		[]string{"ledger_accounts_match_entries", "ledger_transfers_have_entries"},
		[]string{"code=fees", "code=user:1:wallet", "balance=105 (should be 205)", "biz_no=keyed-1",
			"uneven=1 (should be 0)"}},
	{"a balanced pair of entries is forged, and the balances too", forgedPair + `;
		update ledger_accounts a set balance = e.balance_after, version = e.version, last_entry_at = e.recorded_at
		from ledger_entries e
		where e.tenant_id = 1 and a.tenant_id = 1 and e.account_id = a.account_id and e.version = a.version + 1`,
		[]string{"ledger_transfers_have_entries"}, []string{"biz_no=keyed-1", "uneven=1 (should be 0)"}},
	{"a transfer is forged", `insert into ledger_transfers (tenant_id, transfer_id, biz_no, type, recorded_at,
		principal, request_id)
		values (1, 16384000000 + 1, 'forged', 'transfer', now(), 'me', 'r')`,
		[]string{"ledger_transfers_belong", "ledger_transfers_have_entries"},
		[]string{"biz_no=forged", `problem="no batch made it"`}},
	{"postings are relabelled", `update ledger_entries set posting = 2 where tenant_id = 1 and posting = 1
		and transfer_id = ` + pay,
		[]string{"ledger_transfers_have_entries"}, []string{"postings=2 (should be 3)"}},
	{"a message of the inbox is forged", `insert into inbox_messages (tenant_id, consumer_group, message_id, part,
			inbox_id, topic, state, holder, fence, attempts, max_attempts, backoff_ms, max_backoff_ms, received_at,
			begun_at, finished_at, principal, request_id, last_request_id)
		values (1, 'g', 'forged', '', 16384000000 + 1, 't', 'succeeded', 'me', 1, 1, 10, 1, 1, now(), now(), now(),
		'me', 'r', 'r')`,
		[]string{"inbox_messages_belong"}, []string{"message_id=forged", `problem="no batch made it"`}},
	{"a content is left in the inbox", `insert into inbox_contents values (1, 'g', 'left', '', 'x', now())`,
		[]string{"inbox_contents_belong"}, []string{"message_id=left", `problem="there is no such message"`}},
	{"a reversal reverses another", `update ledger_transfers set reverses_id = ` + fund +
		` where tenant_id = 1 and biz_no = 'undo-2'`,
		[]string{"ledger_reversals_mirror"}, []string{"biz_no=undo-2"}},
	{"a reversal loses what it reversed", `update ledger_transfers set reverses_id = 5 where tenant_id = 1
		and biz_no = 'undo-2'`,
		[]string{"ledger_reversals_mirror", "ledger_transfers_belong"},
		[]string{`problem="there is no transfer that it reverses"`}},
	{"decimals are shifted", `update ledger_accounts set scale = 3 where tenant_id = 1 and code = 'fees'`,
		[]string{"ledger_accounts_belong"}, []string{"scale=3 (should be 2)"}},
	{"a limit is drawn over a balance", `alter table ledger_accounts drop constraint ledger_accounts_max_balance_check;
		update ledger_accounts set max_balance = 1 where tenant_id = 1 and code = 'fees'`,
		[]string{"audit_events_match_accounts", "ledger_accounts_within_limits"}, []string{"max_balance=1"}},
	{"a limit is lifted in psql", `update ledger_accounts set min_balance = -1000 where tenant_id = 1
		and code = 'fees'`,
		[]string{"audit_events_match_accounts"}, []string{"code=fees", "min_balance=-1000"}},
	{"an account is frozen in psql", `update ledger_accounts set state = 'frozen' where tenant_id = 1
		and code = 'fees'`,
		[]string{"audit_events_match_accounts"}, []string{"code=fees", "state=frozen"}},
	{"a batch is deleted", `delete from commit_batches where batch_id = ` + fund + ` >> 14`,
		[]string{"ledger_transfers_belong"}, []string{"biz_no=fund-1"}},
	{"a claim is backdated", `update claim_keys set claimed_at = claimed_at - interval '1 day' where tenant_id = 1
		and scope = 'page'`,
		[]string{"claim_keys_belong"}, []string{"tenant=demo", "scope=page", "key=page-1"}},
	{"a claim is forged", `insert into claim_keys (tenant_id, scope, key, claim_id, uses, principal, request_id,
		claimed_at)
		values (1, 'phone', '1', 16384000000 + 1, 1, 'me', 'r', now())`,
		[]string{"claim_keys_belong"}, []string{"scope=phone", `problem="no batch made it"`}},
	{"a business key gets another part", `update claim_keys set parts = '["user:1", "product-8"]'
		where parts is not null`,
		[]string{"claim_keys_match_parts"},
		[]string{"scope=purchase", "key=6:user:1,9:product-7, (should be 6:user:1,9:product-8,)"}},
	{"another tenant's entries get lost", `delete from ledger_entries where tenant_id = 2; delete from ledger_transfers
		where tenant_id = 2`,
		[]string{"ledger_accounts_match_entries"}, []string{"tenant=other", "balance=100 (should be 0)"}},
	{"entries of no tenant appear", `insert into ledger_entries select 99, account_id, version, transfer_id,
		recorded_at, effective_at, posting, asset, amount, balance_before, balance_after from ledger_entries
		where tenant_id = 2`,
		[]string{"ledger_entries_belong"}, []string{"tenant_id=99"}},
	{"the fences are wound back", `insert into work_records (tenant_id, scope, key, state, fence, attempt, lease_ms,
		lease_expires_at, park_lapsed, life_ms, principal, request_id, first_request_id, created_at, begun_at,
		expires_at)
		values (1, 'shop', 'order-1', 'running', 7, 1, 1, now(), false, 1, 'p', 'r', 'r', now(), now(), now())`,
		[]string{"work_fences_drawn"}, []string{"key=order-1", "fence=7"}},
	{"a reservation is deleted", `delete from stock_reservations where reservation_no = 'order-4/1'`,
		[]string{"stock_items_match_reservations"}, []string{"item=sku-1", "sold=7 (should be 2)"}},
	{"a reservation expires unseen", `update stock_items set next_expiry_at = null`,
		[]string{"stock_items_match_reservations"}, []string{"item=sku-1", "first_expiry_at="}},
	{"units are stolen", `update stock_items set available = available - 1, stocked = stocked - 1 where segment = 0`,
		[]string{"stock_items_match_changes"}, []string{"item=sku-1", "stocked=26 (should be 27)"}},
	{"a segment is deleted", `delete from stock_items where segment = 2`,
		[]string{"stock_items_complete", "stock_items_match_changes"}, []string{"segments=2 (should be 3)"}},
	{"a segment gets another strategy", `update stock_items set strategy = 'atomic' where segment = 1`,
		[]string{"stock_items_complete"}, []string{`problem="its segments have several strategies"`}},
	{"an item is left without details", `delete from stock_item_details`,
		[]string{"stock_items_complete"}, []string{`problem="it has no details"`}},
	{"a reservation is forged", `insert into stock_reservations (tenant_id, item, reservation_no, reservation_id,
			quantity, unsold, segment, state, created_at, closed_at, principal, request_id)
			values (1, 'sku-1', 'forged', 16384000000 + 1, 0, 0, 0, 'cancelled', now(), now(), 'me', 'r')`,
		[]string{"stock_reservations_belong"}, []string{"reservation_no=forged", `problem="no batch made it"`}},
	{"a reservation draws from another segment", `update stock_reservations set draws = draws || array[1::bigint]
		where draws is not null`,
		[]string{"stock_reservations_belong"},
		[]string{"reservation_no=order-3/1", `problem="its segments gave another number of units"`}},
	{"units come back twice", `update stock_reservations set unsold = unsold + 1 where reservation_no = 'order-2/1'`,
		[]string{"stock_items_match_reservations", "stock_reservations_match_unsells"},
		[]string{"reservation_no=order-2/1", "unsold=2 (should be 1)"}},
	{"an order's instance is deleted", `delete from machine_instances where key = 'order-9'`,
		[]string{"machine_instances_match_history", "order_orders_belong"},
		[]string{"order_no=order-9", `problem="it has no instance"`}},
	{"an order is forged", `insert into order_orders (tenant_id, order_no, order_id, machine, subject, asset, scale,
		amount, reserve, principal, request_id, created_at)
		select tenant_id, 'forged', 1, machine, subject, asset, scale, amount, false, principal, request_id, created_at
		from order_orders where order_no = 'order-9'`,
		[]string{"order_orders_belong"}, []string{"order_no=forged"}},
	{"a reservation of a paid order is open again", `update stock_reservations set state = 'reserved', closed_at = null
		where reservation_no = 'order-7/1'`,
		[]string{"order_parts_end", "stock_items_match_reservations"},
		[]string{"order_no=order-7", `problem="the reservation is open"`}},
	{"a reservation of an order is deleted", `delete from stock_reservations where reservation_no = 'order-8/1'`,
		[]string{"order_parts_end"}, []string{"order_no=order-8", `problem="it has no such reservation"`}},
	{"a hold of a cancelled order is open again", `update ledger_holds set state = 'held', closed_at = null
		where biz_no = 'order-1/hold'`,
		[]string{"ledger_accounts_match_holds", "order_parts_end"},
		[]string{"order_no=order-1", `problem="the hold is open"`}},
	{"a used coupon is locked again", `update machine_instances set state = 'locked' where machine = 'coupon'
		and key = 'SPRING-1'`,
		[]string{"machine_instances_match_history", "order_parts_end"},
		[]string{"order_no=order-7", `problem="the coupon is locked"`}},
	{"a used coupon loses its owner", `update machine_instances set owner = null where machine = 'coupon'
		and key = 'SPRING-1'`,
		[]string{"coupon_coupons_belong"}, []string{"code=SPRING-1", `problem="it has no owner"`}},
	{"a coupon is forged", `insert into coupon_coupons
		select tenant_id, 'FORGED', 1, campaign, expires_at, metadata, principal, request_id, created_at
			from coupon_coupons where code = 'SPRING-2'`,
		[]string{"coupon_coupons_belong"}, []string{"code=FORGED"}},
	{"a change of stock is deleted", `delete from stock_changes where change_no = 'count-1'`,
		[]string{"stock_changes_belong", "stock_items_match_changes"},
		[]string{"change_no=count-1", `problem="there is no such change"`}},
	{"two locks have one fence", `select nextval('lock_fence_seq'); insert into lock_locks (tenant_id, name, state,
		principal, holder, fence, holds, lease_ms, acquired_at, expires_at, request_id)
		select 1, n, 'held', 'p', 'h', 1, 1, 1000, now(), now() + '1 s', 'r' from unnest(array['a', 'b']) n`,
		[]string{"lock_fences_unique"}, []string{`problem="another lock has it too"`}},
	{"a fence is forged", `insert into lock_locks (tenant_id, name, state, principal, holder, fence, holds, lease_ms,
		acquired_at, expires_at, request_id)
		values (1, 'a', 'held', 'p', 'h', 9999, 1, 1000, now(), now() + '1 s', 'r')`,
		[]string{"lock_fences_unique"}, []string{"fence=9999", `problem="it was not drawn yet"`}},
	{"a lock is deleted that others wait for", `insert into lock_waiters (tenant_id, name, ticket, principal, holder,
		instance, queued_at, alive_until, request_id)
		values (1, 'a', 1, 'p', 'h', 'i', now(), now(), 'r')`,
		[]string{"lock_waiters_belong"}, []string{"name=a"}},
	{"a message is deleted that waits", `delete from notify_messages where biz_no = 'paid-1-mail'`,
		[]string{"notify_names_belong", "notify_queue_belongs"},
		[]string{`problem="there is no such message"`, "biz_no=paid-1-mail"}},
	{"what a message says is deleted before its time", `delete from notify_contents
		where message_id = (select message_id from notify_names where biz_no = 'paid-1-mail')`,
		[]string{"notify_queue_belongs"}, []string{`problem="it has no content"`}},
	{"the proof that a message was sent is deleted", `delete from notify_events where kind = 'delivered'`,
		[]string{"notify_messages_end"}, nil},
	{"a message that waits is taken away", `delete from notify_queue where channel = 'email'`,
		[]string{"notify_messages_end"}, nil},
	{"an instance is moved without a trace", `update machine_instances set state = 'open', came_from = 'closed',
		revision = 3, timer_to = 'closed', timer_at = now()
		where key = '7'`, []string{"machine_instances_match_history"},
		[]string{"key=7", "state=open (should be closed)", "revision=3 (should be 2)"}},
	{"a move is forged", `insert into machine_history select tenant_id, instance_id, revision + 2, machine, key,
		version, to_state, 'lost', actor, cause, reason, inputs, principal, request_id, recorded_at from machine_history
		where revision = 2 and machine = 'ticket'`,
		[]string{"machine_history_chains", "machine_instances_match_history"},
		[]string{"revision=4 (should be 3)", `problem="the machine has no such move"`}},
	{"an instance is deleted", `delete from machine_instances where machine = 'ticket'`,
		[]string{"machine_instances_match_history"}, []string{"key=7"}},
	{"an instance waits for a timer of no machine", `update machine_instances set timer_to = 'open', timer_at = now()`,
		[]string{"machine_instances_belong"}, []string{"timer_to=open (should be none)"}},
	{"a move is added to a machine", `insert into machine_moves values (1, 'ticket', 1, 'open', 'lost', false)`,
		[]string{"machine_moves_match_definitions"}, []string{"machine=ticket", "open>lost"}},
	{"a version is deleted", `delete from machine_definitions where machine = 'ticket'`,
		[]string{"machine_moves_match_definitions"}, []string{`problem="there is no such version"`}},
	{"a number is given to another message", `update notify_names set message_id = message_id + 1
		where biz_no = 'paid-1-sms'`,
		[]string{"notify_names_belong"}, []string{"biz_no=paid-1-sms"}},
	{"a request for approval is forged", `insert into approval_requests select (r).*
		from (select jsonb_populate_record(a, '{"approval_id": 7}') as r
		from approval_requests a where state = 'open')
		x`, []string{"approval_requests_belong"}, []string{"approval_id=7", `problem="no batch made it"`}},
	{"a requester approves", `alter table approval_requests drop constraint approval_requests_decided_by_check;
		update approval_requests set decided_by = principal where state = 'approved'`,
		[]string{"approval_requests_belong", "audit_events_approved"}, []string{`problem="its requester approved it"`}},
	{"an approval is made in psql", `update approval_requests set state = 'approved', decided_by = 'boss',
		decided_at = created_at, decided_request_id = 'x', response = 'y' where state = 'open'`,
		[]string{"approval_requests_belong"}, []string{`problem="no Approve wrote it"`}},
	{"an approval with the key of another", `insert into access_api_keys (tenant_id, key_id, principal, role,
		secret_hash, created_by)
			select tenant_id, 'k2', 'tester', role, secret_hash, created_by from access_api_keys;
		update approval_requests set decided_key_id = 'k2' where state = 'approved'`,
		[]string{"approval_requests_belong", "audit_events_match_keys"},
		[]string{`problem="the key is one of another principal"`}},
	{"a key is made in psql", `insert into access_api_keys (tenant_id, key_id, principal, role, secret_hash, created_by)
			select tenant_id, 'k2', principal, 'admin', secret_hash, created_by from access_api_keys`,
		[]string{"audit_events_match_keys"}, []string{"key_id=k2", `problem="it was not made by a change"`}},
	{"a key is raised in psql", `update access_api_keys set role = 'admin'`,
		[]string{"audit_events_match_keys"}, []string{"role=admin (should be write)"}},
	{"a key gets another secret", `update access_api_keys set secret_hash = sha256('stolen')`,
		[]string{"audit_events_match_keys"}, []string{`problem="it has other values"`}},
	{"an event of a key is nonsense", `update audit_events set after = after || '{"expire_time": "soon"}'
		where kind = 'key'`,
		[]string{"audit_events_match_keys"},
		[]string{`error="invalid input syntax for type timestamp with time zone: \"soon\""`}},
	{"a key lives longer", `update access_api_keys set expires_at = expires_at + interval '1 s'`,
		[]string{"audit_events_match_keys"}, []string{`problem="it has other values"`}},
	{"a key is deleted", `delete from access_api_keys`,
		[]string{"audit_events_match_keys"}, []string{`problem="there is no such key"`}},
	{"an approver is forged", `update audit_events set approved_by = 'nobody' where approved_by is not null`,
		[]string{"audit_events_approved"}, []string{"approved_by=nobody", "principal=tester"}},
	{"a transfer is said to be approved", `update ledger_transfers set request_id = 'approval.7' where tenant_id = 1
		and biz_no = 'undo-2'`,
		[]string{"ledger_transfers_approved"}, []string{"biz_no=undo-2", "request_id=approval.7"}},
	{"a policy is made in psql", `insert into access_policies (tenant_id, operation) values (1, 'ledger.reverse')`,
		[]string{"audit_events_match_policies"},
		[]string{"operation=ledger.reverse", `problem="it was not made by a change"`}},
	{"a policy is deleted in psql", `delete from access_policies where operation = 'ledger.hold'`,
		[]string{"audit_events_match_policies"},
		[]string{"operation=ledger.hold", `problem="there is no such policy"`}},
	{"a policy has another life of keys", `update access_policies set key_life_s = 60 where operation = 'ledger.hold'`,
		[]string{"audit_events_match_policies"}, []string{"operation=ledger.hold", `problem="it has other values"`}},
	{"a policy is lifted in psql", `update access_policies set approval_required = false
		where operation = 'ledger.hold'`,
		[]string{"audit_events_match_policies"}, []string{"operation=ledger.hold", `problem="it has other values"`}},
}

const forgedPair = `insert into ledger_entries (tenant_id, account_id, version, transfer_id, recorded_at, posting,
	asset, amount, balance_before, balance_after)
	select 1, a.account_id, a.version + 1, ` + keyed + `, (select max(recorded_at) from ledger_entries ` +
	`where tenant_id = 1 and transfer_id = ` + keyed + `),
		0, 'CNY', n, a.balance, a.balance + n
	from ledger_accounts a join (values ('user:1:wallet', -100), ('fees', 100)) v (code, n) using (code)
	where a.tenant_id = 1`

func TestTamperingIsFoundAndNamed(t *testing.T) {
	t.Parallel()
	filled := pgtest.New(t)
	t.Run("before", func(t *testing.T) {
		verifytest.Fill(t, filled)
		before, err := verify.Run(t.Context(), pgtest.Pool(t, filled.AllDSN), verify.Options{})
		if err != nil || !before.OK() {
			t.Errorf("%v, %v", before.Violations, err)
		}
	})
	_, columns, err := verify.Sliced(t.Context(), connect(t, pgtest.New(t).SuperDSN), checks.FS)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range tamperings {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := filled.Copy(t)
			db.SkipChecks()
			conn := connect(t, db.SuperDSN)
			pool := pgtest.Pool(t, db.AllDSN)
			named := make([]string, len(c.named))
			for i, name := range c.named {
				named[i] = expand(t, conn, name)
			}
			if _, err := conn.Exec(t.Context(), "set session_replication_role = replica; "+c.sql); err != nil {
				t.Fatal(err)
			}
			sizes := []int{1, 1000}
			if !slices.ContainsFunc(c.checks, func(name string) bool { return columns[name] != "" }) {
				sizes = sizes[1:] // the checks are not sliced
			}
			for _, size := range sizes {
				got, err := verify.Run(t.Context(), pool, verify.Options{SliceAccounts: size})
				if err != nil {
					t.Fatal(err)
				}
				broken := c.checks
				if strings.Contains(c.sql, "drop constraint") {
					broken = append(slices.Clone(broken), "schema_matches")
				}
				expect(t, got, broken, named)
			}
			whole, err := verify.Whole(t.Context(), conn, checks.FS)
			if err != nil {
				t.Fatal(err)
			}
			if found := slices.Sorted(maps.Keys(whole.Found)); !slices.Equal(found,
				slices.Sorted(slices.Values(c.checks))) {
				t.Errorf("whole, %v are broken", found)
			}
			viewsAgree(t, conn, whole)
		})
	}
}

// expect checks that exactly these checks are broken, and that every text occurs in a violation.
func expect(t *testing.T, got verify.Report, broken, named []string) {
	t.Helper()
	if found := slices.Sorted(maps.Keys(got.Found)); !slices.Equal(found, slices.Sorted(slices.Values(broken))) {
		t.Errorf("%v are broken, not %v", found, broken)
	}
	var text strings.Builder
	for _, v := range got.Violations {
		text.WriteString(v.String() + "\n")
		if v.Rule == "" || v.Detail() == "" {
			t.Errorf("%+v says too little", v)
		}
	}
	for _, name := range named {
		if !strings.Contains(text.String(), name) {
			t.Errorf("nothing names %s:\n%s", name, text.String())
		}
	}
}

// viewsAgree checks that the two audit views of violations agree with the checks.
func viewsAgree(t *testing.T, conn *pgx.Conn, r verify.Report) {
	t.Helper()
	for view, check := range map[string]string{
		"audit.unbalanced_transfers": "ledger_transfers_balance",
		"audit.drifted_accounts":     "ledger_accounts_match_entries"} {
		var rows int
		if err := conn.QueryRow(t.Context(), "select count(*) from "+view).Scan(&rows); err != nil {
			t.Fatal(err)
		}
		if rows != r.Found[check] && !(view == "audit.drifted_accounts" && onlyTimeDiffers(r, check)) {
			t.Errorf("%s has %d rows, %s %d", view, rows, check, r.Found[check])
		}
	}
}

// onlyTimeDiffers reports whether the violations concern times only, which the view does not compare.
func onlyTimeDiffers(r verify.Report, check string) bool {
	for _, v := range r.Violations {
		for _, f := range v.Fields {
			if v.Check == check && f.Wrong && f.Name != "last_entry_at" {
				return false
			}
		}
	}
	return true
}

// expand replaces {x} by the result of "select x".
func expand(t *testing.T, conn *pgx.Conn, text string) string {
	t.Helper()
	before, rest, ok := strings.Cut(text, "{")
	if !ok {
		return text
	}
	sql, after, _ := strings.Cut(rest, "}")
	var value string
	if err := conn.QueryRow(t.Context(), "select "+sql+"::text").Scan(&value); err != nil {
		t.Fatal(err)
	}
	return before + value + after
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}
