package hledger

import (
	"encoding/hex"
	"regexp"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/importer"
)

// Names of metadata, written by imports and read by exports.
const (
	metaDescription = "description"
	metaCode        = "code"
	metaStatus      = "status"
	metaComment     = "comment"
	metaDate2       = "date2"
	metaHash        = "hledger.hash"    // over the whole transaction
	metaJournal     = "hledger.journal" // the journal's name
	metaContent     = "hledger.content" // set if a tag, not the content, is the identity
	metaTag         = "tag."
)

// transferType is the type of all imported transfers.
const transferType = "hledger"

// Limits of the server for one transfer.
const (
	maxPostings      = 1000
	maxBizNo         = 128
	maxMetadata      = 64 - 2 // except the names of journal and content
	maxMetadataBytes = 16<<10 - 256
)

// builder converts transactions to transfers.
type builder struct {
	name        string // the journal's name, in every biz_no
	idTag       string // tag that identifies a transaction; empty: none
	conversion  string // account for exchanges of commodities
	virtual     string // account that balances (virtual) postings; empty: they are refused
	commodities *commodities

	ordinals map[content]int // occurrences of each content so far
	notes    notes
}

// notes count deviations from hledger's representation.
type notes struct {
	exchanges, nothing, balancedVirtual, ownDates, assertions int
}

// begin starts another pass over the journal.
func (b *builder) begin() { b.ordinals, b.notes = map[content]int{}, notes{} }

// inspect validates a transaction and raises scales to its decimals.
func (b *builder) inspect(t *transaction) *importer.Problem {
	if _, err := time.Parse(time.DateOnly, t.Date); err != nil {
		return t.problem("%q is not a date", t.Date)
	}
	for _, p := range t.Postings {
		if wrong := importer.BadAccount(p.Account); wrong != "" || len(p.Account) > 256 {
			return t.problem("the account %q cannot be in the ledger: it %s", p.Account, orLong(wrong))
		}
		switch p.Type {
		case regularPosting, balancedVirtual:
		case virtualPosting:
			if b.virtual == "" {
				return t.problem("the posting (%s) is not balanced: name an account that balances such postings with "+
					"--virtual-account",
					p.Account)
			}
		default:
			return t.problem("a posting of the unknown type %s", p.Type)
		}
		for _, a := range p.Amounts {
			if a.rounded() {
				return t.problem("the amount of %s has more than %d decimals, where hledger's JSON rounds: "+
					"import the journal itself",
					p.Account, jsonPlaces)
			}
			d, err := a.Quantity.decimal()
			if err != nil {
				return t.problem("the amount of %s: %v", p.Account, err)
			}
			if d.Coef.IsZero() {
				continue
			}
			asset, err := b.commodities.asset(a.Commodity)
			if err != nil {
				return t.problem("%v", err)
			}
			asset.see(a.Quantity, d)
		}
	}
	if id := b.tagOf(t); importer.BadName(id) != "" || len(prefix(b.name)+tagged+id) > maxBizNo {
		return t.problem("the tag %s: is part of its biz_no, and must be printable ASCII, at most %d bytes: %q",
			b.idTag, maxBizNo-len(prefix(b.name)+tagged), id)
	}
	return metadataProblem(t)
}

func orLong(wrong string) string {
	if wrong == "" {
		return "has more than 256 bytes"
	}
	return wrong
}

func metadataProblem(t *transaction) *importer.Problem {
	m, bytes := metadata(t), 0
	for k, v := range m {
		bytes += len(k) + len(v)
		if len(k) > 128 {
			return t.problem("the tag %q is longer than 128 bytes", k)
		}
	}
	if len(m) > maxMetadata || bytes > maxMetadataBytes {
		return t.problem("its description, comment and tags are more than the ledger keeps of one transfer (%d "+
			"names, %d bytes)",
			maxMetadata, maxMetadataBytes)
	}
	return nil
}

// count counts the deviations in a transaction.
func (b *builder) count(t *transaction) {
	for _, p := range t.Postings {
		if p.Type == balancedVirtual {
			b.notes.balancedVirtual++
		}
		if p.Date != nil && *p.Date != t.Date {
			b.notes.ownDates++
		}
		if len(p.Assertion) > 0 && string(p.Assertion) != "null" {
			b.notes.assertions++
		}
	}
}

// sheet sums a transaction, balanced through the conversion account.
func (b *builder) sheet(t *transaction) (s *sheet, exchanged bool, err error) {
	s = newSheet()
	for _, p := range t.Postings {
		for _, a := range p.Amounts {
			d, err := a.Quantity.decimal()
			if err != nil || d.Coef.IsZero() {
				continue
			}
			asset, err := b.commodities.asset(a.Commodity)
			if err != nil {
				return nil, false, err
			}
			n, err := d.Minor(asset.scale)
			if err == nil {
				err = s.add(p.Account, asset, n)
			}
			if err == nil && p.Type == virtualPosting {
				err = s.add(b.virtual, asset, n.Neg())
			}
			if err != nil {
				return nil, false, err
			}
		}
	}
	exchanged, err = s.balance(b.conversion)
	return s, exchanged, err
}

// built is a transaction with its transfer, nil if it moves nothing.
type built struct {
	*transaction
	identity identity
	transfer *ledgerv1.TransferRequest
}

// transfer makes a transfer. The first pass has determined all scales.
func (b *builder) transfer(t *transaction) (built, *importer.Problem) {
	x := built{transaction: t}
	s, exchanged, err := b.sheet(t)
	if err != nil {
		return x, t.problem("%v", err)
	}
	x.identity.content = contentOf(t, s)
	postings := s.pair()
	switch {
	case len(postings) == 0:
		b.notes.nothing++
		return x, nil
	case len(postings) > maxPostings:
		return x, t.problem("it needs %d postings, and a transfer may have %d", len(postings), maxPostings)
	}
	if exchanged {
		b.notes.exchanges++
	}
	meta := metadata(t)
	meta[metaJournal] = b.name
	if x.identity.tag = b.tagOf(t); x.identity.tag != "" {
		meta[metaContent] = x.identity.content.String()
	} else {
		b.ordinals[x.identity.content]++
		x.identity.ordinal = b.ordinals[x.identity.content]
	}
	at, err := time.Parse(time.DateOnly, t.Date)
	if err != nil {
		return x, t.problem("%q is not a date", t.Date)
	}
	x.transfer = &ledgerv1.TransferRequest{BizNo: x.identity.bizNo(b.name), Type: transferType, Postings: postings,
		Metadata: meta, EffectiveTime: timestamppb.New(at)}
	return x, nil
}

// tagOf is the value of the identifying tag.
func (b *builder) tagOf(t *transaction) string {
	for _, tag := range t.Tags {
		if b.idTag != "" && tag[0] == b.idTag {
			return tag[1]
		}
	}
	return ""
}

func metadata(t *transaction) map[string]string {
	m := map[string]string{metaHash: hex.EncodeToString(t.sum())}
	set := func(name, value string) {
		if value != "" {
			m[name] = strings.ReplaceAll(value, "\x00", "")
		}
	}
	set(metaDescription, t.Description)
	set(metaCode, t.Code)
	if t.Status != "Unmarked" {
		set(metaStatus, strings.ToLower(t.Status))
	}
	set(metaComment, strings.TrimSpace(t.Comment))
	set(metaDate2, t.Date2)
	for _, tag := range t.Tags {
		name := metaTag + tag[0]
		if before := m[name]; before != "" && tag[1] != "" {
			m[name] = before + ", " + tag[1]
		} else {
			set(name, tag[1])
		}
	}
	return m
}

// kindOf is hledger's account type, inferred from the name.
func kindOf(account string) ledgerv1.AccountKind {
	for _, k := range kindNames {
		if k.pattern.MatchString(account) {
			return k.kind
		}
	}
	return ledgerv1.AccountKind_ACCOUNT_KIND_UNSPECIFIED
}

var kindNames = []struct {
	pattern *regexp.Regexp
	kind    ledgerv1.AccountKind
}{
	{regexp.MustCompile(`(?i)^assets?(:|$)`), ledgerv1.AccountKind_ACCOUNT_KIND_ASSET},
	{regexp.MustCompile(`(?i)^(debts?|liabilit(y|ies))(:|$)`), ledgerv1.AccountKind_ACCOUNT_KIND_LIABILITY},
	{regexp.MustCompile(`(?i)^equity(:|$)`), ledgerv1.AccountKind_ACCOUNT_KIND_EQUITY},
	{regexp.MustCompile(`(?i)^(income|revenue)s?(:|$)`), ledgerv1.AccountKind_ACCOUNT_KIND_INCOME},
	{regexp.MustCompile(`(?i)^expenses?(:|$)`), ledgerv1.AccountKind_ACCOUNT_KIND_EXPENSE},
}

// sheet is the sums of a transaction, by asset and account in order of appearance.
type sheet struct {
	assets []*column
	of     map[string]*column // by asset code
}

type column struct {
	asset    *assetOf
	accounts []string
	sums     map[string]amount.Int
}

func newSheet() *sheet { return &sheet{of: map[string]*column{}} }

// add adds to an account's sum, so that debits and credits of one account cancel out.
func (s *sheet) add(account string, asset *assetOf, n amount.Int) error {
	c := s.of[asset.code]
	if c == nil {
		c = &column{asset: asset, sums: map[string]amount.Int{}}
		s.of[asset.code], s.assets = c, append(s.assets, c)
	}
	before, there := c.sums[account]
	if !there {
		c.accounts = append(c.accounts, account)
	}
	sum, ok := before.Add(n)
	if !ok {
		return amount.ErrOverflow
	}
	c.sums[account] = sum
	return nil
}

// balance moves an asset's imbalance to an account: in hledger only the costs of a transaction balance, in the
// ledger every asset must.
func (s *sheet) balance(conversion string) (exchanged bool, err error) {
	for _, c := range s.assets {
		all := make([]amount.Int, 0, len(c.sums))
		for _, n := range c.sums {
			all = append(all, n)
		}
		sum, ok := amount.Sum(all...)
		if !ok {
			return exchanged, amount.ErrOverflow
		}
		if !sum.IsZero() {
			exchanged = true
			if err := s.add(conversion, c.asset, sum.Neg()); err != nil {
				return exchanged, err
			}
		}
	}
	return exchanged, nil
}

// pair makes postings: the first debit is paired with the first credit as far as possible, and so on.
func (s *sheet) pair() []*ledgerv1.Posting {
	var postings []*ledgerv1.Posting
	for _, c := range s.assets {
		var debits, credits []string
		for _, account := range c.accounts {
			switch c.sums[account].Sign() {
			case 1:
				debits = append(debits, account)
			case -1:
				credits = append(credits, account)
			}
		}
		for len(debits) > 0 && len(credits) > 0 {
			from, to := debits[0], credits[0]
			n := amount.Lesser(c.sums[from], c.sums[to].Neg())
			postings = append(postings, &ledgerv1.Posting{From: from, To: to, Asset: c.asset.code,
				Amount: amount.Format(n, c.asset.scale)})
			// Neither can overflow: both move towards zero.
			c.sums[from], _ = c.sums[from].Sub(n)
			c.sums[to], _ = c.sums[to].Add(n)
			if c.sums[from].IsZero() {
				debits = debits[1:]
			}
			if c.sums[to].IsZero() {
				credits = credits[1:]
			}
		}
	}
	return postings
}
