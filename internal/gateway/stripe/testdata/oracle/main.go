// Program oracle writes signed webhooks with the verdicts of Stripe's own library, against which the tests of package
// stripe compare theirs. It is a module of its own because the library is 13 MB:
//
//	go run . > ../webhooks.json
package main

import (
	"encoding/json"
	"log"
	"os"
	"strings"
	"time"

	"github.com/stripe/stripe-go/v85"
	"github.com/stripe/stripe-go/v85/webhook"
)

// Webhook is a case.
type Webhook struct {
	Name, Secret, Header, Body string
	At                         int64 // when it was signed, in seconds since 1970
	Valid                      bool  // as stripe-go says, whatever the time
}

const (
	secret = "whsec_test_secret_of_the_endpoint"
	at     = 1_760_000_000
)

func main() {
	log.SetFlags(0)
	body := `{"id":"evt_1","object":"event","api_version":"` + stripe.APIVersion +
		`","type":"payment_intent.succeeded","created":1760000000,"data":{"object":{"id":"pi_1","note":"café ` +
		`\u00e9 ☃"}}}`
	sign := func(body, secret string) string {
		return webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: []byte(body), Secret: secret,
			Timestamp: time.Unix(at, 0)}).Header
	}
	good := sign(body, secret)
	stamp, mac, _ := strings.Cut(good, ",")
	other := strings.SplitN(sign(body, "whsec_another"), ",", 2)[1]
	all := []Webhook{
		{Name: "signed", Header: good},
		{Name: "empty body", Header: sign("", secret)},
		{Name: "long body", Header: sign(strings.Repeat("x", 4096), secret)},
		{Name: "another secret", Header: stamp + "," + other},
		{Name: "second of two", Header: stamp + "," + other + "," + mac},
		{Name: "first of two", Header: stamp + "," + mac + "," + other},
		{Name: "more schemes", Header: stamp + ",v0=00," + mac + ",v2=00"},
		{Name: "only v0", Header: stamp + "," + strings.Replace(mac, "v1", "v0", 1)},
		{Name: "upper case", Header: stamp + ",v1=" + strings.ToUpper(strings.TrimPrefix(mac, "v1="))},
		{Name: "not hex", Header: stamp + ",v1=zz," + mac},
		{Name: "cut", Header: good[:len(good)-2]},
		{Name: "longer", Header: good + "00"},
		{Name: "time behind", Header: mac + "," + stamp},
		{Name: "no time", Header: mac},
		{Name: "time is no number", Header: "t=x," + mac},
		{Name: "another time", Header: "t=1760000001," + mac},
		{Name: "no signature", Header: stamp},
		{Name: "empty header", Header: ""},
		{Name: "tampered", Header: good},
	}
	for i := range all {
		w := &all[i]
		w.Secret, w.Body, w.At = secret, body, at
		switch w.Name {
		case "empty body":
			w.Body = ""
		case "long body":
			w.Body = strings.Repeat("x", 4096)
		case "tampered":
			w.Body += " "
		}
		w.Valid = webhook.ValidatePayloadIgnoringTolerance([]byte(w.Body), w.Header, w.Secret) == nil
	}
	e := json.NewEncoder(os.Stdout)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(all); err != nil {
		log.Fatal(err)
	}
}
