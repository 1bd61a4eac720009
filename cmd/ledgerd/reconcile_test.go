package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/importer/importertest"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// TestReconcilingIsDocumentedAsItRuns runs every sh block of the page in order, with the real binary.
func TestReconcilingIsDocumentedAsItRuns(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("SKIPPED, NOT TESTED: curl is not installed (apt-get install curl)")
	}
	address, binary := devServer(t), pgtest.Program(t, "github.com/ledgerd/ledgerd/cmd/ledgerd")
	prelude := fmt.Sprintf("cd ../..\nledgerd() { LEDGERD_SERVER=http://%s %s \"$@\"; }\n", address, binary)
	var all strings.Builder
	for _, b := range blocks(t, "../../docs/reconciling.md") {
		if b.info == "sh" || b.info == "sh error" {
			all.WriteString(runBlock(t, fmt.Sprintf("line %d", b.line),
				prelude+strings.ReplaceAll(b.text, "127.0.0.1:8080", address), b.info == "sh error"))
		}
	}
	for _, want := range []string{"1 not posted", "posted: 1 posted, 0 existed already",
		"posted: 0 posted, 1 existed already: this run changed nothing", "3 missing in ledgerd"} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("no %q in\n%s", want, all.String())
		}
	}
}

// The status is 0 only if everything matches, in the table and in JSON.
func TestTheStatusSaysWhetherEverythingMatches(t *testing.T) {
	t.Parallel()
	s := importertest.NewShop(t)
	s.PayExamples()
	const wechat = "../../examples/reconcile/wechat"
	for _, x := range []struct {
		flags string
		code  int
		want  string
	}{
		{"", 1, "not posted  fee   2"},
		{"--json", 1, `"matches": false`},
		{"--json --fee-account other:fees --post", 0, `"posting": "3 posted, 0 existed already"`},
		{"--fee-account other:fees --all", 0, "3 matched"},
		{"--gateway alipay", 1, "3 missing in ledgerd"},
		{"--gateway none", 1, ""},
		{"--end yesterday", 1, ""},
	} {
		var out, errOut bytes.Buffer
		args := append([]string{"reconcile", "gateway", "--server", s.URL, "--mapping", wechat + ".yaml", wechat +
			".csv"},
			strings.Fields(x.flags)...)
		if code := run(t.Context(), args, &out, &errOut); code != x.code || !strings.Contains(out.String(), x.want) {
			t.Errorf("%s: exit code %d\n%s%s", x.flags, code, out.String(), errOut.String())
		}
	}
}
