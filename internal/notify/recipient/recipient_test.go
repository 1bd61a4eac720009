package recipient

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

func TestSpellingsOfOneRecipientAreEqual(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		channel         send.Channel
		written, region string
		want, same      string
	}{
		{send.SMS, "+86 138 1234 5678", "", "+8613812345678", "+8613812345678"},
		{send.SMS, "138-1234-5678", "cn", "+8613812345678", "+8613812345678"},
		{send.SMS, "008613812345678", "CN", "+8613812345678", "+8613812345678"},
		{send.SMS, "＋８６１３８１２３４５６７８", "", "+8613812345678", "+8613812345678"},
		{send.SMS, "(415) 555-2671", "US", "+14155552671", "+14155552671"},
		{send.SMS, "0171 1234567", "DE", "+491711234567", "+491711234567"},
		// Italian numbers keep their leading zero
		{send.SMS, "+39 06 1234 5678", "", "+390612345678", "+390612345678"},
		// an explicit country code overrides the region
		{send.SMS, "+65 8123 4567", "CN", "+6581234567", "+6581234567"},
		{send.Email, "Ada@Example.COM", "", "Ada@example.com", "ada@example.com"},   //
		{send.Email, " ada@example.com ", "", "ada@example.com", "ada@example.com"}, //
		{send.Email, "ada@bücher.example", "", "ada@xn--bcher-kva.example", "ada@xn--bcher-kva.example"},
		{send.Email, "ada@XN--BCHER-KVA.example.", "", "ada@xn--bcher-kva.example", "ada@xn--bcher-kva.example"},
		{send.Email, "a.b+tag@example.com", "", "a.b+tag@example.com", "a.b+tag@example.com"},
		{send.Email, "u\u0308ber@example.com", "", "über@example.com", "über@example.com"},
		{send.Push, "fcm:abc-DEF_123", "", "fcm:abc-DEF_123", "fcm:abc-DEF_123"},
		{send.Webhook, "ep_17", "", "ep_17", "ep_17"},
	} {
		got, err := Parse(c.channel, c.written, c.region)
		if err != nil || got != c.want || Same(c.channel, got) != c.same {
			t.Errorf("%s %q: parsed %q, same %q, %v; want %q, %q", c.channel, c.written, got, Same(c.channel, got), err,
				c.want, c.same)
		}
	}
}

func TestInvalidRecipientIsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		channel         send.Channel
		written, region string
	}{
		{send.SMS, "", "CN"}, {send.SMS, "13812345678", ""}, {send.SMS, "+86138123", ""}, {send.SMS,
			"+86138123456789012", ""},
		{send.SMS, "+999123456789", ""}, {send.SMS, "1-800-FLOWERS", "US"}, {send.SMS, "+14155552671 ext 3", ""},
		{send.SMS, "+", ""},
		{send.SMS, "tel:+14155552671;phone-context=+1", ""}, {send.SMS, "+1415555267\x001", ""},
		{send.SMS, "911", "US"},
		{send.SMS, strings.Repeat("1", 65), "US"}, {send.SMS, "13812345678", "ZZ"},
		{send.Email, "", ""}, {send.Email, "ada", ""}, {send.Email, "@example.com", ""}, {send.Email, "ada@", ""},
		{send.Email, "Ada <ada@example.com>", ""},
		{send.Email, "ada@example.com, eve@example.com", ""}, {send.Email, "a@b@example.com", ""},
		{send.Email, `"a@b"@example.com`, ""},
		{send.Email, "ada@example.com\r\nBcc: eve@example.com", ""}, {send.Email, "a..b@example.com", ""},
		{send.Email, ".a@example.com", ""},
		{send.Email, "ada@[127.0.0.1]", ""}, {send.Email, "ada@exa mple.com", ""},
		{send.Email, "a(comment)da@example.com", ""}, {send.Email, "ada@-a.com", ""},
		{send.Email, strings.Repeat("a", 65) + "@example.com", ""},
		{send.Email, "a@" + strings.Repeat("b.", 126) + "com", ""}, {send.Email, "a\xff@example.com", ""},
		{send.Email, "ad\u202ea@example.com", ""},
		{send.Push, "", ""}, {send.Push, "a b", ""}, {send.Push, "ä", ""},
		{send.Webhook, strings.Repeat("a", 2049), ""},
	} {
		got, err := Parse(c.channel, c.written, c.region)
		if err == nil {
			t.Errorf("%s %q: accepted as %q", c.channel, c.written, got)
		} else if c.written != "" && strings.Contains(err.Error(), c.written) {
			t.Errorf("%s %q: the error contains the recipient: %v", c.channel, c.written, err)
		}
	}
}

func TestMasksDoNotIdentifyRecipients(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		channel   send.Channel
		of, shown string
	}{
		{send.SMS, "+8613812345678", "+86138****5678"}, {send.SMS, "+14155552671", "+1415****671"}, {send.SMS,
			"+6581234567", "+6581****67"},
		{send.SMS, "+2901234", "+290****"}, {send.SMS, "nonsense", "****"}, {send.SMS, "", "****"},
		{send.Email, "ada@example.com", "a***@example.com"}, {send.Email, "über@example.com", "ü***@example.com"},
		{send.Email, "a@example.com", "***@example.com"},
		{send.Email, "x", "****"}, {send.Email, "ada@" + strings.Repeat("b", 63) + ".com", "a***@" +
			strings.Repeat("b", 58) + "…"},
		{send.Push, "short", "****"}, {send.Push, "abcd" + strings.Repeat("x", 100) + "wxyz", "abcd****wxyz"},
		{send.Webhook, "ep_17", "ep_17"},
	} {
		if got := Mask(c.channel, c.of); got != c.shown || utf8.RuneCountInString(got) > MaxHint {
			t.Errorf("%s %q: mask %q, want %q", c.channel, c.of, got, c.shown)
		}
	}
}

func TestPrefixAndDialCode(t *testing.T) {
	t.Parallel()
	if got := Prefix("+8613812345678"); got != "+861381234" {
		t.Error(got)
	}
	for number, code := range map[string]string{"+8613812345678": "86", "+14155552671": "1", "+12425551234": "1",
		"+35312345678": "353", "": ""} {
		if got := DialCode(number); got != code {
			t.Errorf("%s: %s, want %s", number, got, code)
		}
	}
	if !Region("CN") || Region("cn") || Region("ZZ") || Region("") {
		t.Error("wrong regions")
	}
}

// Parse is idempotent and never panics.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"+8613812345678", "138 1234 5678", "ada@example.com", "ü@bücher.example", "a@b.c.",
		"+1 (415) 555-2671"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, channel := range []send.Channel{send.SMS, send.Email, send.Push, send.Webhook} {
			got, err := Parse(channel, s, "CN")
			if err != nil {
				continue
			}
			again, err := Parse(channel, got, "")
			if err != nil || again != got {
				t.Fatalf("%s %q: %q, then %q, %v", channel, s, got, again, err)
			}
			if hint := Mask(channel, got); hint == got && channel != send.Webhook ||
				utf8.RuneCountInString(hint) > MaxHint {
				t.Fatalf("%s %q: mask %q", channel, got, hint)
			}
		}
	})
}
