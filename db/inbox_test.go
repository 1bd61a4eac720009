package db_test

import (
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestInboxConstraintsRefuseByName(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.SkipChecks() // its rows have no batch
	conn := connect(t, db.SuperDSN)
	do(t, conn, "insert into access_tenants (tenant_id, name) values (1, 'demo')")
	const message = `insert into inbox_messages (tenant_id, consumer_group, message_id, part, inbox_id, topic, state,
		holder, fence, attempts, max_attempts, backoff_ms, max_backoff_ms, received_at, begun_at, principal, request_id,
		last_request_id, finished_at) values `
	do(t, conn, message+"(1, 'g', 'm', '', 1, 't', 'succeeded', 'h', 1, 1, 1, 1, 1, now(), now(), 'p', "+
		"'r', 'r', now())")
	do(t, conn, "insert into inbox_contents values (1, 'g', 'm', '', 'hello', now() + interval '1 day')")
	const set = "update inbox_messages set "
	for constraint, sql := range map[string]string{
		"inbox_messages_pkey": message +
			"(1, 'g', 'm', '', 2, 't', 'succeeded', 'h', 1, 1, 1, 1, 1, now(), now(), 'p', 'r', 'r', now())",
		"inbox_messages_id_key": message +
			"(1, 'g', 'n', '', 1, 't', 'succeeded', 'h', 1, 1, 1, 1, 1, now(), now(), 'p', 'r', 'r', now())",
		"inbox_messages_consumer_group_check": set + "consumer_group = ''",
		"inbox_messages_message_id_check":     set + "message_id = repeat('x', 257)",
		"inbox_messages_part_check":           set + "part = repeat('x', 129)",
		"inbox_messages_content_sha256_check": set + "content_sha256 = 'x'",
		"inbox_messages_state_check":          set + "state = 'gone', finished_at = null",
		"inbox_messages_fence_check":          set + "fence = 0",
		"inbox_messages_attempts_check":       set + "max_attempts = 0",
		"inbox_messages_lease_check":          set + "lease_expires_at = now()",
		"inbox_messages_retry_check":          set + "retry_at = now()",
		"inbox_messages_finished_check":       set + "finished_at = null",
		"inbox_messages_expires_check":        set + "state = 'dead', expires_at = now()",
		"inbox_messages_failure_text_check":   set + "failure_text = repeat('x', 4097)",
		"inbox_messages_result_check":         set + "result = repeat('x', 4097)",
		"inbox_contents_pkey":                 "insert into inbox_contents values (1, 'g', 'm', '', 'x', now())",
		"inbox_contents_content_check": "update inbox_contents set content = convert_to(repeat('x', " +
			"1048577), 'UTF8')",
	} {
		state := checkViolated
		if !strings.HasSuffix(constraint, "_check") {
			state = uniqueTaken
		}
		refused(t, conn, sql, state, constraint)
	}
	got := lines(t, asAuditor(t, db), "select format('%s %s %s %s %s', tenant, message_id, state, attempts, "+
		"content_bytes) from audit.inbox")
	if strings.Join(got, ";") != "demo m succeeded 1 5" {
		t.Errorf("audit.inbox has %v", got)
	}
}

func TestTheServiceMayNotRenameAMessage(t *testing.T) {
	t.Parallel()
	conn := connect(t, pgtest.New(t).AllDSN)
	for _, sql := range []string{"truncate inbox_messages", "update inbox_messages set message_id = message_id",
		"update inbox_messages set tenant_id = tenant_id",
		"update inbox_messages set consumer_group = consumer_group", "update inbox_messages set part = part",
		"update inbox_contents set message_id = message_id"} {
		refused(t, conn, sql, noPrivilege, "")
	}
}
