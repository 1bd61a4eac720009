package load

import (
	"time"

	"google.golang.org/protobuf/proto"

	salev1 "github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1/salev1connect"
)

// Grabber grabs units of a sale over Connect, one call after the other.
type Grabber struct {
	conn httpConn
	spec Spec
	sale string
}

// NewGrabber connects to a server.
func NewGrabber(url, apiKey, sale string, patience time.Duration) (*Grabber, error) {
	g := &Grabber{spec: Spec{URL: url, APIKey: apiKey, Patience: patience}, sale: sale}
	return g, g.conn.open(&g.spec)
}

// Close closes the connection.
func (g *Grabber) Close() { g.conn.close() }

// Grab grabs a unit for a buyer.
func (g *Grabber) Grab(buyer string) (*salev1.GrabResponse, error) {
	res := &salev1.GrabResponse{}
	return res, g.call(salev1connect.SaleServiceGrabProcedure,
		&salev1.GrabRequest{Sale: g.sale, Grab: &salev1.Grab{Buyer: buyer}}, res)
}

// GrabMany grabs a unit for each of several buyers.
func (g *Grabber) GrabMany(buyers []string) ([]*salev1.GrabResult, error) {
	r, res := &salev1.GrabManyRequest{Sale: g.sale}, &salev1.GrabManyResponse{}
	for _, buyer := range buyers {
		r.Grabs = append(r.Grabs, &salev1.Grab{Buyer: buyer})
	}
	err := g.call(salev1connect.SaleServiceGrabManyProcedure, r, res)
	return res.GetResults(), err
}

func (g *Grabber) call(procedure string, request, response proto.Message) error {
	return g.conn.unary(&g.spec, procedure, request, response)
}
