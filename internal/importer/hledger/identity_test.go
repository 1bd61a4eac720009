package hledger_test

import (
	"errors"
	"strings"
	"testing"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/importer"
	"github.com/ledgerd/ledgerd/internal/importer/hledger"
	"github.com/ledgerd/ledgerd/internal/importer/importertest"
)

// entry is a transaction of a journal.
func entry(head string, postings ...string) string {
	return head + "\n    " + strings.Join(postings, "\n    ") + "\n\n"
}

var (
	rent   = entry("2020-01-01 rent", "expenses:rent  700.00 EUR", "assets:bank")
	coffee = entry("2020-01-02 coffee", "expenses:food  2.50 EUR", "assets:bank")
	salary = entry("2020-01-03 salary", "assets:bank  2000.00 EUR", "income:work")
	gift   = entry("2020-01-02 gift", "assets:bank  50.00 EUR", "income:gifts")
)

// book is one journal that changes between imports.
type book struct {
	url string
	hledger.ImportOptions
}

func newBook(t *testing.T) *book {
	t.Parallel()
	return &book{url: importertest.Serve(t), ImportOptions: hledger.ImportOptions{Name: "home", IDTag: "biz_no"}}
}

// is imports a journal and compares the ledger with it.
func (b *book) is(t *testing.T, counts string, entries ...string) (out string) {
	t.Helper()
	b.Path = importertest.Write(t, "home.journal", strings.Join(entries, ""))
	out, err := do(t, b.url, b.ImportOptions)
	if err != nil || !strings.Contains(out, "  "+counts+"\n") {
		t.Errorf("%v, want %q:\n%s", err, counts, out)
	}
	same(t, "the trial balance", trialBalance(t, b.url), balanceOf(t, b.Path))
	return out
}

// refuses checks that a journal is refused: every problem is reported, and the ledger is unchanged.
func (b *book) refuses(t *testing.T, journal string, problems ...string) {
	t.Helper()
	before := trialBalance(t, b.url)
	b.Path = importertest.Write(t, "home.journal", journal)
	out, err := do(t, b.url, b.ImportOptions)
	if err == nil || errors.Is(err, importer.ErrStopped) {
		t.Errorf("%v: not refused before the first transfer\n%s", err, out)
		return
	}
	for _, p := range problems {
		if !strings.Contains(out+err.Error(), p) {
			t.Errorf("%q is not in:\n%s%v", p, out, err)
		}
	}
	if after := trialBalance(t, b.url); len(before) != 0 || len(after) != 0 {
		same(t, "the trial balance after a refusal", after, before)
	}
}

func TestOnlyAnInsertedTransactionIsNew(t *testing.T) {
	b := newBook(t)
	b.is(t, "3 posted, 0 existed already", rent, coffee, salary)
	b.is(t, "1 posted, 3 existed already", rent, gift, coffee, salary)
	b.is(t, "0 posted, 4 existed already: this run changed nothing", rent, gift, coffee, salary)
}

func TestReorderedTransactionsAreNotNew(t *testing.T) {
	b := newBook(t)
	b.is(t, "4 posted, 0 existed already", rent, gift, coffee, salary)
	b.is(t, "0 posted, 4 existed already: this run changed nothing", "; a new first line\n\n", salary, coffee, gift,
		rent)
}

func TestEqualTransactionsAreCounted(t *testing.T) {
	b := newBook(t)
	b.is(t, "2 posted, 0 existed already", coffee, coffee)
	b.is(t, "1 posted, 2 existed already", coffee, gift, coffee)
	b.is(t, "1 posted, 3 existed already", coffee, coffee, gift, coffee)
}

func TestAnEditedTransactionIsDetectedBeforeSending(t *testing.T) {
	b := newBook(t)
	b.is(t, "3 posted, 0 existed already", rent, coffee, salary)
	for name, edited := range map[string]string{
		"amount":      strings.Replace(rent, "700", "750", 1),
		"date":        strings.Replace(rent, "01-01", "01-05", 1),
		"account":     strings.Replace(rent, "expenses:rent", "expenses:home", 1),
		"description": strings.Replace(rent, "2020-01-01 rent", "2020-01-01 flat", 1),
		"removed":     "",
	} {
		t.Run(name, func(t *testing.T) {
			b.refuses(t, gift+edited+coffee+salary, `was imported, and is no longer in the journal: 2020-01-01 "rent"`,
				"1 transaction")
		})
	}
	b.refuses(t, rent+coffee+coffee+salary+strings.Replace(coffee, "2.50", "2.505", 1),
		"EUR has 2 decimals in the ledger and 3 in the file")
}

// long has amounts that hledger's JSON rounds; it rounds the first to zero.
var long = rent + entry("2020-01-04 tiny", "a  0.000000000001 BTC", "b") +
	entry("2020-01-05 long", "(v)  0.1234567890123456 BTC", "a  1.000000000001 XYZ @ 1.12 EUR", "a  2.000000000002 XYZ",
		"[b]  -0.12345678999 BTC",
		"[c]", "d")

func TestAmountsWithMoreThanTenDecimalsAreExact(t *testing.T) {
	b := newBook(t)
	b.Virtual = "virtual"
	b.Path = importertest.Write(t, "home.journal", long)
	if out, err := do(t, b.url, b.ImportOptions); err != nil || !strings.Contains(out, "3 posted, 0 existed already") {
		t.Fatalf("%v\n%s", err, out)
	}
	got := trialBalance(t, b.url).without("virtual").without(conversion)
	// hledger rounds computed amounts here
	same(t, "the trial balance", got.without("d"), balanceOf(t, b.Path).without("d"))
	for name, want := range map[string]string{"v BTC": "0.1234567890123456", "d EUR": "-1.12000000000112"} {
		if d := got[name].String(); d != want {
			t.Errorf("%s has %s, not %s", name, d, want)
		}
	}
	b.Path = importertest.Write(t, "comma.journal",
		long+"commodity 1.000,00 CHF\n"+entry("2020-01-06 comma", "a  1.234,123456789012 CHF", "b"))
	if out, err := do(t, b.url, b.ImportOptions); err != nil ||
		trialBalance(t, b.url)["a CHF"].String() != "1234.123456789012" {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestAmountsThatTheJSONRoundsAreRefusedWithTheirLine(t *testing.T) {
	b := newBook(t)
	json := func(amount string) string {
		journal := rent + entry("2020-01-04 x", "a  "+amount, "b")
		return run(t, "print", "-O", "json", "-f", importertest.Write(t, "x.journal", journal))
	}
	for amount, account := range map[string]string{"0.1234567890123456 BTC": "a", "0.000000000001 BTC": "a",
		"1.123456 EUR @ 1.1234567 USD": "b"} {
		b.Path = "-"
		b.Stdin = strings.NewReader(json(amount))
		out, err := do(t, b.url, b.ImportOptions)
		if err == nil || !strings.Contains(err.Error(), "nothing was sent") || !strings.Contains(out, "line 5: ") ||
			!strings.Contains(out, "the amount of "+account+" has more than 10 decimals") {
			t.Errorf("%s: %v\n%s", amount, err, out)
		}
	}
	b.Stdin = strings.NewReader(json("0.1234567891 BTC")) // exactly ten decimals
	if out, err := do(t, b.url, b.ImportOptions); err != nil || !strings.Contains(out, "2 posted") {
		t.Errorf("%v\n%s", err, out)
	}
	b.refuses(t, rent+entry("2020-01-04 x", "a  0.0000000000000000001 BTC", "b"), "line 5", "more than 18 decimals")
}

func TestAmountsThatTheJSONWritesWithAnExponentAreExact(t *testing.T) {
	b := newBook(t)
	b.is(t, "1 posted, 0 existed already", entry("2020-01-04 much", "a  123456789012345678901.12 BTC", "b"))
}

func TestEditsOfCommentsTagsAndStatusesAreIgnored(t *testing.T) {
	b := newBook(t)
	b.is(t, "3 posted, 0 existed already", rent, "2020-01-02 coffee  ; with Ann\n"+coffee[len("2020-01-02 coffee\n"):],
		coffee)
	// Swap the two coffees.
	out := b.is(t, "0 posted, 3 existed already: this run changed nothing", rent, coffee,
		"2020-01-02 coffee  ; with Ann\n"+coffee[len("2020-01-02 coffee\n"):])
	if strings.Contains(out, "another comment") {
		t.Errorf("a reordered transaction was reported as edited:\n%s", out)
	}
	out = b.is(t, "1 posted, 3 existed already", strings.Replace(rent, "rent\n", "rent  ; paid, by:me\n", 1), coffee,
		coffee, coffee)
	if !strings.Contains(out, "1 were imported with another comment, tag or status") {
		t.Errorf("an edited comment is not reported:\n%s", out)
	}
}

func TestATagIdentifiesAnEditedTransaction(t *testing.T) {
	b := newBook(t)
	marked := entry("2020-01-01 rent  ; biz_no:rent-1", "expenses:rent  700.00 EUR", "assets:bank")
	other := entry("2020-02-01 rent  ; biz_no:rent-2", "expenses:rent  700.00 EUR", "assets:bank")
	b.is(t, "2 posted, 0 existed already", marked, coffee)
	b.is(t, "1 posted, 2 existed already", coffee, other, marked)
	b.refuses(t, strings.Replace(marked, "700", "750", 1)+other+coffee+gift,
		"hledger:home:id:rent-1: was imported, and was edited since, at line 1")
	b.refuses(t, marked+coffee+other+strings.Replace(other, "700", "750", 1), "line 13",
		`"rent-2", as has the tag of the transaction at line 9`)
	b.refuses(t, other+coffee+gift, "hledger:home:id:rent-1: was imported, and is no longer in the journal")
	b.refuses(t, strings.Replace(marked, "rent-1", strings.Repeat("x", 200), 1), "line 1", "at most 112 bytes")
	b.is(t, "0 posted, 3 existed already: this run changed nothing",
		strings.Replace(marked, "rent-1", "rent-1, a:b", 1), other, coffee)
}

func TestImportingAPartIgnoresTheRest(t *testing.T) {
	b := newBook(t)
	b.is(t, "3 posted, 0 existed already", rent, coffee, coffee)
	b.refuses(t, coffee+coffee+salary, "--part")
	b.Part = true
	b.Path = importertest.Write(t, "home.journal", coffee+coffee+salary)
	if out, err := do(t, b.url, b.ImportOptions); err != nil || !strings.Contains(out, "1 posted, 2 existed already") {
		t.Fatalf("%v\n%s", err, out)
	}
	b.Part = false
	b.is(t, "0 posted, 4 existed already: this run changed nothing", rent, coffee, coffee, salary)
}

func TestJournalsAreComparedSeparately(t *testing.T) {
	b := newBook(t)
	b.is(t, "1 posted, 0 existed already", coffee)
	b.Name, b.Path = "work", importertest.Write(t, "work.journal", coffee)
	if out, err := do(t, b.url, b.ImportOptions); err != nil || !strings.Contains(out, "1 posted, 0 existed already") {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestAChangedAssetOrAccountMappingIsDetected(t *testing.T) {
	b := newBook(t)
	exchange := entry("2020-01-04 shares", "assets:shares  3 XYZ @ 10 EUR", "assets:bank")
	b.Path = importertest.Write(t, "home.journal", exchange)
	if out, err := do(t, b.url, b.ImportOptions); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b.Conversion = "equity:other"
	b.refuses(t, exchange, `was imported, and is no longer in the journal: 2020-01-04 "shares"`)
	b.Conversion, b.Commodities = "", map[string]string{"XYZ": "XY"}
	b.refuses(t, exchange, `was imported, and is no longer in the journal: 2020-01-04 "shares"`)
}

func TestTransactionsAfterARefusalAreCountedAsNotSent(t *testing.T) {
	b := newBook(t)
	c := importertest.Dial(b.url)
	if err := c.EnsureAssets(t.Context(), []*ledgerv1.Asset{{Code: "EUR", Scale: 2}}); err != nil {
		t.Fatal(err)
	}
	_, err := c.Ledger.CreateAccounts(t.Context(),
		&ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{{Code: "expenses:rent", Asset: "EUR"}}})
	if err != nil {
		t.Fatal(err)
	}
	b.Path = importertest.Write(t, "home.journal", rent+strings.Repeat(coffee, 1500))
	out, err := do(t, b.url, b.ImportOptions)
	if !errors.Is(err, importer.ErrStopped) ||
		!strings.Contains(out, "999 posted, 0 existed already, 1 refused by the ledger, 501 not sent\n") {
		t.Errorf("%v\n%s", err, out)
	}
	b.KeepGoing = true
	out, err = do(t, b.url, b.ImportOptions)
	if !errors.Is(err, importer.ErrIncomplete) ||
		!strings.Contains(out, "501 posted, 999 existed already, 1 refused by the ledger\n") {
		t.Errorf("%v\n%s", err, out)
	}
}
