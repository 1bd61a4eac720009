package work

import (
	"encoding/json"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/work/internal/db"
)

// params converts rows to statement parameters: arrays without nulls.
func params(rows []*row) (a db.WorkInsertParams, tids []pgtype.TID) {
	pg.Reserve(&a, len(rows))
	for _, r := range rows {
		w := &r.Value
		tids = append(tids, w.tid)
		a.Tenants = append(a.Tenants, r.Key.Tenant)
		a.Scopes = append(a.Scopes, r.Key.Scope)
		a.Keys = append(a.Keys, r.Key.Name)
		a.Bound = append(a.Bound, w.bound)
		a.Fingerprints = append(a.Fingerprints, pg.NotNil(w.fingerprint))
		a.States = append(a.States, string(w.state))
		a.Fences = append(a.Fences, w.fence)
		a.Attempts = append(a.Attempts, w.attempt)
		a.LeaseMs = append(a.LeaseMs, w.lease.Milliseconds())
		a.LeaseExpiresAt = append(a.LeaseExpiresAt, w.leaseExpiresAt)
		a.ParkLapsed = append(a.ParkLapsed, w.parkLapsed)
		a.LifeMs = append(a.LifeMs, w.life.Milliseconds())
		a.Principals = append(a.Principals, w.principal)
		a.RequestIds = append(a.RequestIds, w.requestID)
		a.FirstRequestIds = append(a.FirstRequestIds, w.firstRequestID)
		a.CreatedAt = append(a.CreatedAt, w.createdAt)
		a.BegunAt = append(a.BegunAt, w.begunAt)
		a.SettledAt = append(a.SettledAt, w.settledAt)
		a.SettledBy = append(a.SettledBy, w.settledBy)
		a.SettledRequestIds = append(a.SettledRequestIds, w.settledRequest)
		a.ExpiresAt = append(a.ExpiresAt, w.expiresAt)
		addAnswer(&a, w)
	}
	return a, tids
}

func addAnswer(a *db.WorkInsertParams, w *work) {
	x := w.answer
	a.Answered = append(a.Answered, x != nil)
	if x == nil {
		x = &Answer{}
	}
	a.Statuses = append(a.Statuses, x.Status)
	a.Headers = append(a.Headers, encodeHeaders(x.Headers))
	a.Bodies = append(a.Bodies, pg.NotNil(x.body))
	a.BodyCompressed = append(a.BodyCompressed, x.compressed)
	a.BodyBytes = append(a.BodyBytes, int32(x.bytes))
	a.AnswerHashes = append(a.AnswerHashes, pg.NotNil(w.answerHash))
}

// encodeHeaders encodes headers as a list of pairs, because a name may occur several times.
func encodeHeaders(headers []Header) []byte {
	pairs := make([][2]string, len(headers))
	for i, h := range headers {
		pairs[i] = [2]string{h.Name, h.Value}
	}
	b, err := json.Marshal(pairs)
	if err != nil {
		panic(err) // strings always encode
	}
	return b
}

func decodeHeaders(b []byte) ([]Header, error) {
	var pairs [][2]string
	if err := json.Unmarshal(b, &pairs); err != nil {
		return nil, err
	}
	headers := make([]Header, len(pairs))
	for i, p := range pairs {
		headers[i] = Header{p[0], p[1]}
	}
	return headers, nil
}
