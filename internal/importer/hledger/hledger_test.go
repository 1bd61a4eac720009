package hledger_test

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"maps"
	"os/exec"
	"strings"
	"testing"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/importer/hledger"
	"github.com/ledgerd/ledgerd/internal/importer/importertest"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const conversion = "equity:conversion"

// balances by account and commodity, without zeros.
type balances map[string]amount.Decimal

func run(t *testing.T, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("hledger"); err != nil {
		t.Skip("SKIPPED, NOT TESTED: hledger is not installed (apt-get install hledger)")
	}
	cmd := exec.CommandContext(t.Context(), "hledger", args...)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("hledger %q: %v\n%s", args, err, &errOut)
	}
	return string(out)
}

// balanceOf returns hledger's balances.
func balanceOf(t *testing.T, journal string) balances {
	t.Helper()
	rows, err := csv.NewReader(strings.NewReader(run(t, "balance", "--file", journal, "--flat", "--no-total",
		"--layout", "bare", "-O", "csv"))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	b := balances{}
	for _, r := range rows[1:] {
		d, err := amount.ParseDecimal(r[2])
		if err != nil {
			t.Fatal(err)
		}
		if !d.Coef.IsZero() {
			b[r[0]+" "+r[1]] = d
		}
	}
	return b
}

// trialBalance returns the ledger's balances with debits positive, as in hledger.
func trialBalance(t *testing.T, url string) balances {
	t.Helper()
	c := importertest.Dial(url).Ledger
	b := balances{}
	for token := ""; ; {
		page, err := c.TrialBalance(t.Context(), &ledgerv1.TrialBalanceRequest{PageSize: 50, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range page.GetLines() {
			text := l.GetDebit()
			if text == "" && l.GetCredit() != "" {
				text = "-" + l.GetCredit()
			}
			if text == "" {
				continue
			}
			d, err := amount.ParseDecimal(text)
			if err != nil {
				t.Fatal(err)
			}
			b[l.GetCode()+" "+l.GetAsset()] = d
		}
		for _, total := range page.GetTotals() {
			if total.GetDebit() != total.GetCredit() {
				t.Errorf("%s does not balance: %s and %s", total.GetAsset(), total.GetDebit(), total.GetCredit())
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			return b
		}
	}
}

func (b balances) without(account string) balances {
	c := maps.Clone(b)
	maps.DeleteFunc(c, func(name string, _ amount.Decimal) bool { return strings.HasPrefix(name, account+" ") })
	return c
}

func same(t *testing.T, what string, got, want balances) {
	t.Helper()
	for name, d := range want {
		if got[name] != d {
			t.Errorf("%s: %s has %s, not %s", what, name, got[name], d)
		}
	}
	for name, d := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: %s has %s, unexpectedly", what, name, d)
		}
	}
	if len(want) == 0 {
		t.Errorf("%s: no balances to compare", what)
	}
}

func do(t *testing.T, url string, o hledger.ImportOptions) (out string, err error) {
	t.Helper()
	var b bytes.Buffer
	o.Client, o.Out, o.Err = importertest.Dial(url), &b, &b
	if o.Conversion == "" {
		o.Conversion = conversion
	}
	err = hledger.Import(t.Context(), o)
	return b.String(), err
}

func export(t *testing.T, url string, o hledger.ExportOptions) (journal string) {
	t.Helper()
	var b bytes.Buffer
	o.Client, o.Out, o.Conversion = importertest.Dial(url), &b, conversion
	if _, err := hledger.Export(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return importertest.Write(t, "export.journal", b.String())
}

func TestJournalExportAndTrialBalanceAgree(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]string{"bcexample": "1,035", "1ktxns-100accts": "1,000"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := importertest.Data(t, name+".journal")
			original := balanceOf(t, data)
			url := importertest.Serve(t)
			for _, counts := range []string{size + " posted, 0 existed already", "0 posted, " + size +
				" existed already: this run changed nothing"} {
				out, err := do(t, url, hledger.ImportOptions{Path: data})
				if err != nil || !strings.Contains(out, counts) {
					t.Fatalf("%v, want %q:\n%s", err, counts, out)
				}
			}
			ours := trialBalance(t, url)
			same(t, "the trial balance", ours.without(conversion), original)
			same(t, "the export", balanceOf(t, export(t, url, hledger.ExportOptions{})), ours)
			same(t, "the export with costs", balanceOf(t, export(t, url, hledger.ExportOptions{Costs: true})), original)
			t.Logf("%d balances agree", len(original))

			// The export is an ordinary journal: imported into another ledger it gives the same balances.
			again := importertest.Serve(t)
			if out, err := do(t, again, hledger.ImportOptions{Path: export(t, url,
				hledger.ExportOptions{})}); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			same(t, "the export, imported", trialBalance(t, again), ours)
		})
	}
}

const journal = `
2020-01-01 * (c1) Shop | food  ; trip:rome, who:me
    ; second line
    Expenses:Food      $12.50  ; tasty
    Expenses:Bags       $0.10
    Assets:Cash 5%

2020-01-02=2020-01-05 ! two, with: signs (and) more
    Assets:Gold      3 "gold bar" @ 10.00 EUR
    [Budget:x]       1.00 EUR
    [Budget:y]
    Assets:Bank    -30.00 EUR

2020-01-03 nothing moves
    a  0 EUR
    b  0 EUR
`

func TestAJournalRoundTrips(t *testing.T) {
	t.Parallel()
	url := importertest.Serve(t)
	path := importertest.Write(t, "home.journal", journal)
	want := balanceOf(t, path)
	if _, err := do(t, url, hledger.ImportOptions{Path: path}); err == nil {
		t.Fatal("a commodity that cannot be an asset code is accepted")
	}
	out, err := do(t, url, hledger.ImportOptions{Path: path, Commodities: map[string]string{"gold bar": "GOLD"}})
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, line := range []string{"2 posted", "1 of them exchange commodities", "1 of them move no amounts",
		"2 [virtual] postings became ordinary postings"} {
		if !strings.Contains(out, line) {
			t.Errorf("%q is not in:\n%s", line, out)
		}
	}
	r, err := importertest.Dial(url).Ledger.ListTransfers(t.Context(),
		&ledgerv1.ListTransfersRequest{Metadata: map[string]string{"code": "c1"}})
	if err != nil || len(r.GetTransfers()) != 1 {
		t.Fatal(r, err)
	}
	first := r.GetTransfers()[0]
	m := first.GetMetadata()
	for name, value := range map[string]string{"description": "Shop | food", "code": "c1", "status": "cleared",
		"tag.trip": "rome", "tag.who": "me",
		"comment": "trip:rome, who:me\nsecond line"} {
		if m[name] != value {
			t.Errorf("the metadata %s is %q", name, m[name])
		}
	}
	if at := first.GetEffectiveTime().AsTime().String(); at != "2020-01-01 00:00:00 +0000 UTC" {
		t.Error("effective time", at)
	}
	o := hledger.ExportOptions{Costs: true, Commodities: map[string]string{"$": "USD", "gold bar": "GOLD"}}
	same(t, "the export", balanceOf(t, export(t, url, o)), want)
	printed := run(t, "print", "--file", export(t, url, o))
	for _, line := range []string{"2020-01-01 * (" + first.GetBizNo() + ") Shop | food",
		"2020-01-02=2020-01-05 ! (hledger:home:", ":1) two, with: signs (and) more",
		"code: c1", "trip:rome, who:me"} {
		if !strings.Contains(printed, line) {
			t.Errorf("%q is not in:\n%s", line, printed)
		}
	}
}

func TestStdinNeedsAName(t *testing.T) {
	t.Parallel()
	url := importertest.Serve(t)
	if _, err := do(t, url, hledger.ImportOptions{Path: "-", Stdin: strings.NewReader("[]")}); err == nil ||
		!strings.Contains(err.Error(), "--name") {
		t.Error("stdin without a name was accepted: ", err)
	}
	home := run(t, "print", "-O", "json", "-f", importertest.Write(t, "x.journal", rent))
	for _, counts := range []string{"1 posted", "0 posted, 1 existed already: this run changed nothing"} {
		if out, err := do(t, url, hledger.ImportOptions{Path: "-", Name: "x",
			Stdin: strings.NewReader(home)}); err != nil || !strings.Contains(out, counts) {
			t.Fatalf("%v, and not %q\n%s", err, counts, out)
		}
	}
}

func TestMoreDecimalsThanTheAssetsScaleAreRefused(t *testing.T) {
	t.Parallel()
	url := importertest.Serve(t)
	c := importertest.Dial(url)
	if err := c.EnsureAssets(t.Context(),
		[]*ledgerv1.Asset{{Code: "EUR", Scale: 2}, {Code: "CHF", Scale: 6}}); err != nil {
		t.Fatal(err)
	}
	file := func(name, amount string) string {
		return importertest.Write(t, name,
			run(t, "print", "-O", "json", "-f",
				importertest.Write(t, "x.journal", "2020-01-01 x\n    a  "+amount+"\n    b\n")))
	}
	if out, err := do(t, url, hledger.ImportOptions{Path: file("a.json", "1.005 EUR")}); err == nil ||
		!strings.Contains(err.Error(), "EUR has 2 decimals in the ledger and 3 in the file") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := do(t, url, hledger.ImportOptions{Path: file("b.json", "1.005 CHF")}); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestExportIncludesTransfersThatWereNotImported(t *testing.T) {
	t.Parallel()
	url := importertest.Serve(t)
	c := importertest.Dial(url)
	if err := c.EnsureAssets(t.Context(), []*ledgerv1.Asset{{Code: "P1", Scale: 3}}); err != nil {
		t.Fatal(err)
	}
	codes := []string{"(odd)", "two  spaces", "semi;colon:x", "!mark"}
	for _, code := range codes {
		_, err := c.Ledger.CreateAccounts(t.Context(),
			&ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{{Code: code, Asset: "P1",
				Unbounded: true}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	r := &ledgerv1.TransferRequest{BizNo: "x (1) ;", Type: "my type",
		Metadata: map[string]string{"a b:c": "1,2\n3", "description": "d; not a comment", "date": "never"}}
	for i := range codes {
		r.Postings = append(r.Postings, &ledgerv1.Posting{From: codes[i], To: codes[(i+1)%len(codes)], Asset: "P1",
			Amount: fmt.Sprintf("1%d.005", i)})
	}
	if _, err := c.Ledger.Transfer(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	path := export(t, url, hledger.ExportOptions{})
	got := balanceOf(t, path)
	want := balances{}
	for name, d := range trialBalance(t, url) {
		code, asset, _ := strings.Cut(name, " P1")
		name = map[string]string{"(odd)": "%28odd)", "two  spaces": "two %20spaces", "semi;colon:x": "semi%3Bcolon:x",
			"!mark": "%21mark"}[code] + " P1" + asset
		want[name] = d
	}
	same(t, "the export", got, want)
	printed := run(t, "print", "--file", path)
	for _, line := range []string{"(x (1%29 ;) d%3B not a comment", "type: my type", "a%20b%3Ac: 1%2C2%0A3"} {
		if !strings.Contains(printed, line) {
			t.Errorf("%q is not in:\n%s", line, printed)
		}
	}
}

func TestTheExampleInTheDocumentationAgrees(t *testing.T) {
	t.Parallel()
	const example = "../../../examples/import/home.journal"
	want := balanceOf(t, example)
	url := importertest.Serve(t)
	if out, err := do(t, url, hledger.ImportOptions{Path: example}); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	same(t, "the trial balance", trialBalance(t, url).without(conversion), want)
	same(t, "the export", balanceOf(t, export(t, url, hledger.ExportOptions{Costs: true})), want)
}
