// Command errdoc writes docs/reference/errors.md from the reasons that the packages define.
package main

import (
	"fmt"
	"os"
	"strings"

	_ "github.com/ledgerd/ledgerd/internal/access" // each package defines its own reasons
	"github.com/ledgerd/ledgerd/internal/fault"
	_ "github.com/ledgerd/ledgerd/internal/flow"
	_ "github.com/ledgerd/ledgerd/internal/rpc"
)

const head = `# Errors

Every error carries ` + "`google.rpc.ErrorInfo`" + ` (reason, domain ` + "`ledgerd`" + `, and as metadata the present
state that the reason refers to), ` + "`ledgerd.errors.v1.ErrorDetail`" + ` (class, next step, whether to show the message to the
user, request id), where fields are wrong ` + "`google.rpc.BadRequest`" + `, and where waiting helps ` + "`google.rpc.RetryInfo`" + `.
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

func main() {
	var b strings.Builder
	b.WriteString(head)
	for _, r := range fault.All() {
		show := ""
		if r.Show {
			show = "yes"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", r.Name, r.Class, r.Code, r.Step, show, r.Doc)
	}
	if err := os.WriteFile(os.Args[1], []byte(b.String()), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "errdoc:", err)
		os.Exit(1)
	}
}
