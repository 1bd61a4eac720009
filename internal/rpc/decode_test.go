package rpc

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// An error must name the item: a batch has up to ten thousand.
func TestFieldErrorsOfItemsHaveTheFullPath(t *testing.T) {
	t.Parallel()
	const at = "items[7].transfer."
	var d decoder
	d.item(&ledgerv1.TransferBatchItem{Transfer: &ledgerv1.TransferRequest{
		BizNo: "größe", Type: "reversal", Metadata: map[string]string{strings.Repeat("m", 129): ""},
		EffectiveTime: timestamppb.New(time.Now().AddDate(1, 0, 0).Truncate(time.Second)),
		Conditions:    []*ledgerv1.Condition{{Account: &ledgerv1.AccountRef{Code: "a", Asset: "CNY"}}},
	}}, at)
	var paths []string
	for _, f := range d.f.Fields {
		paths = append(paths, f.Path)
	}
	slices.Sort(paths)
	want := []string{at + "biz_no", at + "conditions[0]", at + "effective_time", at + "metadata", at + "type"}
	if !slices.Equal(paths, want) {
		t.Errorf("paths %q, want %q", paths, want)
	}
}

// U+10FFFF is the exclusive upper bound of lists and sums of all accounts.
func TestCodesSortBeforeTheUpperBoundOfPatterns(t *testing.T) {
	t.Parallel()
	var d decoder
	if d.code("code", "\U0010FFFE:a"); d.err() != nil {
		t.Error(d.err())
	}
	if d.code("code", "\U0010FFFF:a"); d.err() == nil {
		t.Error("a code with U+10FFFF was accepted")
	}
}

// The zero time means that there is none, so it must not be accepted as one.
func TestZeroTimeIsRejected(t *testing.T) {
	t.Parallel()
	first := time.Time{}
	var d decoder
	if at := d.effective("effective_time", timestamppb.New(first.Add(time.Microsecond))); d.err() != nil ||
		at.IsZero() {
		t.Error(at, d.err())
	}
	if d.time("end_time", timestamppb.New(first)); d.err() == nil {
		t.Error("the zero time was accepted")
	}
}

func TestAmountErrorsAreListedWithOtherFieldErrors(t *testing.T) {
	t.Parallel()
	var d decoder
	d.bad("biz_no", "is too long")
	d.positive("amount", "0.00", ledger.Exact)
	d.positive("other", "x", ledger.Exact)
	if len(d.f.Fields) != 3 || d.f.Fields[1].Path != "amount" || d.f.Fields[2].Path != "other" {
		t.Errorf("fields of the error: %+v", d.f.Fields)
	}
}

// Decoding nested Anys costs a pass over the content for each level: small requests could take seconds.
func TestDeepJSONIsRefused(t *testing.T) {
	t.Parallel()
	nested := func(levels int) []byte {
		const open = `{"request":{"@type":"type.googleapis.com/ledgerd.batch.v1.ExecuteRequest","operations":[`
		return []byte(`{"operations":[` + strings.Repeat(open, levels) + strings.Repeat(`]}}`, levels) + `]}`)
	}
	if err := readJSON.Unmarshal(nested(5), new(batchv1.ExecuteRequest)); err != nil {
		t.Error(err)
	}
	if err := readJSON.Unmarshal(nested(100), new(batchv1.ExecuteRequest)); err == nil {
		t.Error("100 levels were accepted")
	}
}

func TestSpacesStandInsideOfNamesOnly(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{"a b": true, "a b:c d": true, " a": false, "a ": false, " ": false,
		"a: b": false,
		"a :b": false, "a: :b": false, "a\u00a0b": false, "\u3000a": false} {
		var d decoder
		if d.code("code", text); (d.f == nil) != ok {
			t.Errorf("%q: %v", text, d.f)
		}
	}
}

func TestErrorNamesOneFieldAndHowManyMore(t *testing.T) {
	t.Parallel()
	var d decoder
	d.bad("a", "is wrong")
	for range 2 { // err may be called again
		if got := d.err().Error(); !strings.HasSuffix(got, "a: is wrong") {
			t.Error(got)
		}
	}
	d.bad("b", "is wrong too")
	d.bad("c", "is wrong too")
	for range 2 {
		if got := d.err().Error(); !strings.HasSuffix(got, "a: is wrong (and 2 more)") {
			t.Error(got)
		}
	}
}

// Distinct names do not look alike: they have no invisible characters, and one normal form.
func TestNamesAreVisibleAndNormal(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		"user:1001": true, "店铺:北京": true, "Zoë": true, "मुंबई": true, "a b": true, "🎁": true,
		"Zoe\u0308":     false, // not composed
		"user\u200b:1":  false, // zero-width space
		"user\u202e1":   false, // right-to-left override
		"user\u2066x":   false, // isolate
		"\ufeffuser":    false, // byte-order mark
		"user\u0085":    false, // C1 control
		"user\u2028x":   false, // line separator
		"user\u00adx":   false, // soft hyphen
		"a\tb":          false,
		"broken \ufffd": false,
		"buyer ":        false,
		" buyer":        false,
		"buyer\u3000":   false, // ideographic space
	} {
		var d decoder
		d.name("name", text)
		d.code("code", text)
		if f := d.f; (f == nil) != ok || f != nil && len(f.Fields) != 2 {
			t.Errorf("%q: %v", text, f)
		}
	}
}
