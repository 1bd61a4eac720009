// Command refdoc writes the pages of docs/reference: the error reasons and the operations of the API from the code, and
// the stories from the scripts in scenarios/, which tests run.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	_ "github.com/ledgerd/ledgerd/internal/access" // each package defines its own reasons
	"github.com/ledgerd/ledgerd/internal/fault"
	_ "github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/rpc"
)

const errorsHead = `# Errors

Every error carries ` + "`google.rpc.ErrorInfo`" + ` (reason, domain ` + "`ledgerd`" + `, and as metadata the present
state that the reason refers to), ` + "`ledgerd.errors.v1.ErrorDetail`" +
	` (class, next step, whether to show the message to the
user, request id), where fields are wrong ` + "`google.rpc.BadRequest`" + `, and where waiting helps ` +
	"`google.rpc.RetryInfo`" + `.
An item of ` + "`TransferBatch`" + ` has the same in its ` + "`error`" + `.

| class | recorded under the key? | may the same key run again? |
|---|---|---|
| bad_request | no | yes, corrected |
| duplicate | no | not needed: the error names the first result |
| business_refusal | yes | no: repeats get the same refusal; use a new key for a new decision |
| conflict | no | yes, after reading the state again |
| system | no, nothing is kept | yes |

This page is generated from the code: ` + "`make generate`" + `.

| reason | class | code | next step | show to user | meaning |
|---|---|---|---|---|---|
`

const operationsHead = `# Operations

Every call of the API has the name by which [scopes and policies](../security.md#scopes) know it: its package, and its
name in small letters. ` + "`ledgerd.order.v1.OrderService/CreateOrder`" + ` is
` + "`order.create_order`" + `. Records of request keys, their
metrics and the audit views have it too.

- **role**: the least that makes the call. Some requests need ` + "`admin`" +
	` besides, such as one that changes a limit of an
  account.
- **Execute**: [Execute](../api/batch.md) may contain it.
- **policy**: what ` + "`ledgerd policy set`" +
	` may ask for it: *keys*, a request key or submit token; *approval*, by a second
  principal; *above*, approval above an amount.
- **fields**: what a scope may name, such as ` + "`ledger.transfer(from=user:*)`" + `. Items of a batch,
  and operations of an Execute, need scopes of their own.

This page is generated from the code: ` + "`make generate`" + `.

| operation | call | role | Execute | policy | fields |
|---|---|---|---|---|---|
`

const storiesHead = `# Stories

Each story is a script that a test runs against two real servers and Postgres. [The commands](../../scenarios/README.md)
are few: ` + "`call`" + ` makes a call, ` + "`call!`" + ` one that is refused with the given reason, ` + "`together`" +
	` many at the same
moment, alternately at both servers; ` + "`answer`" + ` compares a field of the last answer, ` + "`psql`" +
	` runs a query.

This page is generated from ` + "`scenarios/`" + `: ` + "`make generate`" + `.
`

func main() {
	told, err := stories("scenarios")
	if err != nil {
		fmt.Fprintln(os.Stderr, "refdoc:", err)
		os.Exit(1)
	}
	for name, page := range map[string]string{"errors.md": errorReasons(), "operations.md": operations(),
		"stories.md": told} {
		if err := os.WriteFile(filepath.Join(os.Args[1], name), []byte(page), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "refdoc:", err)
			os.Exit(1)
		}
	}
}

func errorReasons() string {
	var b strings.Builder
	b.WriteString(errorsHead)
	for _, r := range fault.All() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", r.Name, r.Class, r.Code, r.Step, yes(r.Show), r.Doc)
	}
	return b.String()
}

func operations() string {
	var b strings.Builder
	b.WriteString(operationsHead)
	for _, e := range rpc.Catalog() {
		var policy []string
		for _, p := range []struct {
			may  bool
			name string
		}{{e.Policy, "keys"}, {e.Approval, "approval"}, {e.Above, "above"}} {
			if p.may {
				policy = append(policy, p.name)
			}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", e.Operation, e.Call, e.Role, yes(e.Execute),
			strings.Join(policy, ", "), strings.Join(e.Fields, ", "))
	}
	return b.String()
}

// stories returns the page with all scripts of a folder.
func stories(folder string) (string, error) {
	var b strings.Builder
	b.WriteString(storiesHead)
	files, err := filepath.Glob(filepath.Join(folder, "*.txtar"))
	if err != nil {
		return "", err
	}
	for _, f := range files { // sorted
		script, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		title := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(f), ".txtar"), "-", " ")
		fmt.Fprintf(&b, "\n## %s\n\n```text\n%s```\n", strings.ToUpper(title[:1])+title[1:], script)
	}
	return b.String(), nil
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return ""
}
