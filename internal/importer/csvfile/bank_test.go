package csvfile_test

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/importer"
	"github.com/ledgerd/ledgerd/internal/importer/csvfile"
	"github.com/ledgerd/ledgerd/internal/importer/importertest"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// childEnv makes this binary run an import that a test can kill. Its value has the server, mapping and file.
const childEnv = "LEDGERD_TEST_IMPORT"

func TestMain(m *testing.M) {
	if child := os.Getenv(childEnv); child != "" {
		args := strings.Split(child, "\n")
		err := csvfile.Run(context.Background(),
			csvfile.Options{Path: args[2], Mapping: args[1], Client: importertest.Dial(args[0]),
				Out: os.Stdout, Err: os.Stderr})
		fmt.Fprintln(os.Stderr, "ended:", err)
		os.Exit(0)
	}
	pgtest.Main(m)
}

const bankMapping = "../../../examples/import/bank.yaml"

// do runs an import and returns its output.
func do(t *testing.T, url string, o csvfile.Options) (out string, err error) {
	t.Helper()
	var b bytes.Buffer
	o.Client, o.Out, o.Err = importertest.Dial(url), &b, &b
	err = csvfile.Run(t.Context(), o)
	return b.String(), err
}

func wantLines(t *testing.T, out string, want ...string) {
	t.Helper()
	for _, line := range want {
		if !strings.Contains(out, line) {
			t.Errorf("%q is not in:\n%s", line, out)
		}
	}
}

func TestTheBankIsImportedAndDifferencesAreReported(t *testing.T) {
	t.Parallel()
	data := importertest.Data(t, "bank-1993-1994.csv")
	url := importertest.Serve(t)
	report := filepath.Join(t.TempDir(), "report.csv")
	out, err := do(t, url, csvfile.Options{Path: data, Mapping: bankMapping, Report: report})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	wantLines(t, out, "49,102 movements on 1,229 accounts, 1993-01-01 to 1994-03-31",
		"49,102 posted, 0 existed already",
		"46,749 follow exactly, 2,353 differ (2,325 by no more than 0.10, 28 by more), at most by 332.20",
		"the ledger's balance is the sum of the file on 1,229 of 1,229 accounts")
	byDifference := readReport(t, report)
	if byDifference["0.10"] != 2325 || byDifference["more"] != 28 || byDifference["0.00"] != 0 {
		t.Errorf("the report lists %v", byDifference)
	}
	client := importertest.Dial(url)
	negative := 0
	err = client.Accounts(t.Context(), "bank:account:*", "CZK", func(a *ledgerv1.Account) {
		if strings.HasPrefix(a.GetBalance(), "-") {
			negative++
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d accounts end below zero", negative)
}

// readReport counts the rows by size of their difference, and checks the sums within each row.
func readReport(t *testing.T, path string) map[string]int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, r := range rows[1:] {
		size := strings.TrimPrefix(r[7], "-")
		if size != "0.10" && size != "0.00" {
			size = "more"
		}
		counts[size]++
	}
	return counts
}

// stopper forwards calls to a server. It holds the answer to the third batch back until killed is closed.
type stopper struct {
	http.Handler
	batches         atomic.Int32
	reached, killed chan struct{}
}

func newStopper(t *testing.T, server string) *stopper {
	t.Helper()
	target, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	k := &stopper{Handler: proxy, reached: make(chan struct{}), killed: make(chan struct{})}
	proxy.ModifyResponse = func(r *http.Response) error {
		if strings.HasSuffix(r.Request.URL.Path, "/TransferBatch") && k.batches.Add(1) == 3 {
			close(k.reached)
			<-k.killed
		}
		return nil
	}
	return k
}

func TestAKilledImportContinuesWhereItStopped(t *testing.T) {
	t.Parallel()
	data := firstLines(t, importertest.Data(t, "bank-1993-1994.csv"), 6_001)
	url := importertest.Serve(t)
	stopper := newStopper(t, url)
	proxy := httptest.NewServer(stopper)
	defer proxy.Close()
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), childEnv+"="+strings.Join([]string{proxy.URL, bankMapping, data}, "\n"))
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	select {
	case err := <-ended:
		t.Fatalf("the import ended before it was killed: %v", err)
	case <-stopper.reached:
	}
	if err := child.Process.Kill(); err != nil { // SIGKILL
		t.Error(err)
	}
	close(stopper.killed)
	<-ended
	out, err := do(t, url, csvfile.Options{Path: data, Mapping: bankMapping})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var landed, existed int
	for line := range strings.Lines(out) {
		_, _ = fmt.Sscanf(strings.ReplaceAll(line, ",", ""), "  %d posted %d existed", &landed, &existed)
	}
	if landed == 0 || existed == 0 || landed+existed != 6_000 {
		t.Errorf("the second run did not continue where the first one stopped:\n%s", out)
	}
	_, rest, _ := strings.Cut(out, "is the sum of the file on ")
	var agree, of int
	if _, err := fmt.Sscanf(rest, "%d of %d", &agree, &of); err != nil || agree == 0 || agree != of {
		t.Errorf("%d of %d accounts agree:\n%s", agree, of, out)
	}
	out, err = do(t, url, csvfile.Options{Path: data, Mapping: bankMapping})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	wantLines(t, out, "0 posted, 6,000 existed already: this run changed nothing")
}

func firstLines(t *testing.T, path string, n int) string {
	t.Helper()
	all, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfterN(string(all), "\n", n+1)
	return importertest.Write(t, "first.csv", strings.Join(lines[:n], ""))
}

func TestTheExampleInTheDocumentationIsImported(t *testing.T) {
	t.Parallel()
	url := importertest.Serve(t)
	out, err := do(t, url, csvfile.Options{Path: "../../../examples/import/statement.csv",
		Mapping: "../../../examples/import/statement.yaml"})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	wantLines(t, out, "6 movements on 1 account, 2026-01-02 to 2026-01-31", "6 posted", "5 follow exactly, 1 differ",
		"on 1 of 1 account", "1 of them without the opening balance")
}

const small = `
columns: [id, account, day, amount, after]
asset: {code: EUR, scale: 2}
biz_no: "x:{id}"
date: {column: day, format: YYYY-MM-DD}
amount: {column: amount}
account: {code: "a:{account}", floor: "0"}
counter: {code: "world"}
balance: {column: after}
`

func TestABadFileIsNotSentAtAll(t *testing.T) {
	t.Parallel()
	url := importertest.Serve(t)
	mapping := importertest.Write(t, "m.yaml", small)
	file := importertest.Write(t, "f.csv",
		"1,7,2020-01-01,5.00,5.00\n2,7,2020-01-01,5.001,10.00\n3,7,2020-01-01,1.00\n4,7,2020-01-02,2.00,7.00\n")
	out, err := do(t, url, csvfile.Options{Path: file, Mapping: mapping})
	if err == nil || !strings.Contains(err.Error(), "has 2 bad rows: nothing was sent") {
		t.Error(err)
	}
	wantLines(t, out, "line 2, column amount: 5.001 has more decimals than EUR", "line 3: has 4 columns, not 5")
	if n := accounts(t, url); n != 0 {
		t.Errorf("%d accounts were created", n)
	}

	out, err = do(t, url, csvfile.Options{Path: file, Mapping: mapping, KeepGoing: true})
	if !errors.Is(err, importer.ErrIncomplete) {
		t.Error(err)
	}
	wantLines(t, out, "line 2, column amount", "line 3: has 4 columns, not 5: skipped",
		"2 posted, 0 existed already, 2 skipped",
		"2 follow exactly, 0 differ", "on 1 of 1 account")
}

func accounts(t *testing.T, url string) (n int) {
	t.Helper()
	if err := importertest.Dial(url).Accounts(t.Context(), "", "", func(*ledgerv1.Account) { n++ }); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestADuplicateBizNoInAFileIsReported(t *testing.T) {
	t.Parallel()
	url := importertest.Serve(t)
	mapping := importertest.Write(t, "m.yaml", small)
	var rows strings.Builder
	for i := range 2500 {
		fmt.Fprintf(&rows, "%d,7,2020-01-01,1.00,%d.00\n", i, i+1)
	}
	// One duplicate far from the first use, in another batch, and one next to it.
	file := importertest.Write(t, "f.csv",
		rows.String()+"17,7,2020-01-01,1.00,0\n8,8,2020-01-02,1.00,1.00\nz,8,2020-01-02,1.00,2.00\nz,8,2020-01-02,"+
			"1.00,3.00\n")
	out, err := do(t, url, csvfile.Options{Path: file, Mapping: mapping})
	if err == nil || !strings.Contains(err.Error(), "3 bad rows: nothing was sent") || accounts(t, url) != 0 {
		t.Errorf("%v\n%s", err, out)
	}
	wantLines(t, out, "line 2501: the biz_no x:17 was used before, at line 18",
		"line 2504: the biz_no x:z was used before, at line 2503")
	for range 2 { // a second run reports it again
		out, err = do(t, url, csvfile.Options{Path: file, Mapping: mapping, KeepGoing: true})
		if !errors.Is(err, importer.ErrIncomplete) {
			t.Error(err)
		}
		wantLines(t, out, "2 have a biz_no that the file used before, 1 refused by the ledger",
			"line 2501: the biz_no x:17 was used before in the file",
			"line 2504: the biz_no x:z was used before, at line 2503",
			"line 2502: the ledger refuses x:8: BIZ_NO_EXISTS_DIFFERENT")
	}
}

func TestRefusalsOfTheLedgerAreReported(t *testing.T) {
	t.Parallel()
	url := importertest.Serve(t)
	mapping := importertest.Write(t, "m.yaml", small)
	file := importertest.Write(t, "f.csv",
		"1,7,2020-01-01,5.00,5.00\n2,7,2020-01-02,-6.00,-1.00\n3,7,2020-01-03,1.00,0.00\n")
	report := filepath.Join(t.TempDir(), "r.csv")
	out, err := do(t, url, csvfile.Options{Path: file, Mapping: mapping, KeepGoing: true, Report: report})
	if !errors.Is(err, importer.ErrIncomplete) {
		t.Error(err)
	}
	wantLines(t, out, "line 2: the ledger refuses x:2: INSUFFICIENT_FUNDS",
		"2 posted, 0 existed already, 1 refused by the ledger",
		"the ledger's balance is the sum of the file on 1 of 1 account")
	// An existing account with other limits is unchanged, and refused transfers are tried again.
	mapping = importertest.Write(t, "n.yaml", strings.Replace(small, `, floor: "0"`, "", 1))
	if out, err = do(t, url, csvfile.Options{Path: file, Mapping: mapping}); err != nil {
		t.Error(err)
	}
	wantLines(t, out, "a:7 exists with other limits or of another kind, and was not changed",
		"1 posted, 2 existed already")
}

func TestInputFromAPipe(t *testing.T) {
	t.Parallel()
	url := importertest.Serve(t)
	mapping := importertest.Write(t, "m.yaml", small)
	out, err := do(t, url, csvfile.Options{Path: "-", Stdin: strings.NewReader("1,7,2020-01-01,5.00,5.00\n"),
		Mapping: mapping})
	if err != nil {
		t.Fatal(err)
	}
	wantLines(t, out, "-: 1 movement on 1 account", "1 posted")
}
