package ledger_test

import (
	"math/big"
	"slices"
	"strings"
)

func (m *model) hold(o op) string {
	p := o.posts[0]
	if h := m.holds[o.biz]; h != nil {
		if fields := h.differs(o); len(fields) > 0 {
			slices.Sort(fields)
			return "BIZ_NO_EXISTS_DIFFERENT " + strings.Join(fields, ",")
		}
		return "existed " + h.line()
	}
	a := m.accounts[p.from+"/"+p.asset]
	if a == nil || p.to != "" && m.accounts[p.to+"/"+p.asset] == nil {
		return "ACCOUNT_NOT_FOUND"
	}
	var n *big.Int
	if p.form != "all" {
		var reason string
		if n, reason = minor(p.amount, p.asset); reason != "" {
			return reason
		}
	}
	switch a.state {
	case "closed":
		return "ACCOUNT_CLOSED"
	case "frozen":
		return "ACCOUNT_FROZEN"
	}
	n, reason := a.pays(p.form, n, false)
	switch {
	case reason != "":
		return reason
	case !fits(plus(a.held, n)), !fits(minus(a.balance, n)):
		return "AMOUNT_TOO_LARGE"
	}
	a.held = plus(a.held, n)
	h := &modelHold{op: o, amount: n, captured: new(big.Int), state: "held", expires: m.now.Add(o.life)}
	m.holds[o.biz] = h
	return h.line()
}

func (h *modelHold) differs(o op) (fields []string) {
	p, first := o.posts[0], h.op.posts[0]
	for name, differs := range map[string]bool{"from": p.from != first.from, "to": p.to != first.to,
		"asset": p.asset != first.asset,
		"life":  o.life != h.op.life, "metadata": o.metadata != h.op.metadata, "form": p.form != first.form} {
		if differs {
			fields = append(fields, name)
		}
	}
	if p.form == first.form && p.form != "all" && !h.sameAmount(p) {
		fields = append(fields, "amount")
	}
	return fields
}

func (h *modelHold) sameAmount(p opPost) bool { return sameNumber(p.amount, h.op.posts[0].amount) }

func (m *model) capture(o op) string {
	h, p := m.holds[o.target], o.posts[0]
	if t := m.transfers[o.biz]; t != nil {
		line := t.repeat(o, t.captureDiffers(o, h))
		if strings.HasPrefix(line, "existed") {
			line += " | " + h.line()
		}
		return line
	}
	switch {
	case h == nil:
		return "HOLD_NOT_FOUND"
	case h.state == "expired":
		return "HOLD_EXPIRED"
	case h.state != "held":
		return "HOLD_NOT_HELD"
	}
	to := p.to
	if to == "" {
		to = h.op.posts[0].to
	}
	if to == "" {
		return "DESTINATION_MISSING"
	}
	asset := h.op.posts[0].asset
	if to += "/" + asset; m.accounts[to] == nil {
		return "ACCOUNT_NOT_FOUND"
	}
	if to == h.account() {
		return "FIELD_INVALID"
	}
	n := minus(h.amount, h.captured)
	if p.amount != "" {
		asked, reason := minor(p.amount, asset)
		if reason != "" {
			return reason
		}
		if asked.Cmp(n) > 0 {
			return "CAPTURE_EXCEEDS_HOLD"
		}
		n = asked
	}
	t := &modelTransfer{op: o, kind: "capture"}
	if reason := m.post(t, h.account(), to, "exact", n, h); reason != "" {
		return reason
	}
	if o.rest || h.captured.Cmp(h.amount) == 0 {
		m.end(h, "captured")
	}
	return m.keep(t, o.kind) + " | " + h.line()
}

func (t *modelTransfer) captureDiffers(o op, h *modelHold) (fields []string) {
	if t.kind != "capture" {
		return []string{"call"}
	}
	if h == nil || o.target != t.op.target {
		return []string{"hold_biz_no"}
	}
	p, first := o.posts[0], t.op.posts[0]
	own := func(code string) string {
		if code == "" {
			return h.op.posts[0].to
		}
		return code
	}
	if own(p.to) != own(first.to) {
		fields = append(fields, "to")
	}
	switch {
	case (p.amount == "") != (first.amount == ""), p.amount != "" && !sameNumber(p.amount, first.amount):
		fields = append(fields, "amount")
	case p.amount != "" && o.rest != t.op.rest: // capturing everything leaves no rest
		fields = append(fields, "release_rest")
	}
	if o.kind != t.op.kind {
		fields = append(fields, "type")
	}
	if o.metadata != t.op.metadata {
		fields = append(fields, "metadata")
	}
	return fields
}

func (m *model) release(o op) string {
	h := m.holds[o.target]
	switch {
	case h == nil:
		return "HOLD_NOT_FOUND"
	case h.state == "released":
		return "existed " + h.line()
	case h.state == "expired":
		return "HOLD_EXPIRED"
	case h.state == "captured":
		return "HOLD_NOT_HELD"
	}
	m.end(h, "released")
	return h.line()
}

func (m *model) reverse(o op) string {
	first := m.transfers[o.target]
	if t := m.transfers[o.biz]; t != nil {
		var fields []string
		if t.kind != "reversal" {
			fields = []string{"call"}
		} else {
			if fields = shared(o, t.op); o.target != t.op.target {
				fields = append(fields, "transfer_biz_no")
			}
		}
		return t.repeat(o, fields)
	}
	switch {
	case first == nil:
		return "TRANSFER_NOT_FOUND"
	case first.reversed:
		return "ALREADY_REVERSED"
	}
	t := &modelTransfer{op: o, kind: "reversal"}
	for _, p := range slices.Backward(first.moves) {
		if reason := m.post(t, p.to, p.from, "exact", p.n, nil); reason != "" {
			return reason
		}
	}
	first.reversed = true
	return m.keep(t, "reversal")
}

func (m *model) update(o op) string {
	a := m.accounts[o.account]
	switch {
	case a == nil:
		return "ACCOUNT_NOT_FOUND"
	case a.state == "closed" && o.state != "closed":
		return "ACCOUNT_CLOSED"
	}
	for _, l := range []struct {
		text string
		at   **big.Int
	}{{o.least, &a.least}, {o.most, &a.most}} {
		switch l.text {
		case "":
		case "none":
			*l.at = nil
		default:
			n, reason := minor(l.text, assetOf(o.account))
			if reason != "" {
				return reason
			}
			*l.at = n
		}
	}
	switch {
	case a.least != nil && minus(a.balance, a.held).Cmp(a.least) < 0, a.most != nil && a.balance.Cmp(a.most) > 0:
		return "ACCOUNT_LIMIT_VIOLATED"
	case o.state == "closed" && (a.balance.Sign() != 0 || a.held.Sign() != 0):
		return "ACCOUNT_NOT_EMPTY"
	case o.state != "":
		a.state = o.state
	}
	return a.line()
}

func (m *model) create(o op) string {
	asset := assetOf(o.account)
	if _, ok := scales[asset]; !ok {
		return "ASSET_NOT_FOUND"
	}
	a := &modelAccount{key: o.account, kind: o.kind, state: "open", balance: new(big.Int), held: new(big.Int)}
	for _, l := range []struct {
		text string
		at   **big.Int
	}{{o.least, &a.least}, {o.most, &a.most}} {
		if l.text == "none" || l.text == "" {
			continue
		}
		n, reason := minor(l.text, asset)
		if reason != "" {
			return reason
		}
		*l.at = n
	}
	if b := m.accounts[o.account]; b != nil {
		var fields []string
		if a.kind != b.kind {
			fields = append(fields, "kind")
		}
		if !sameBound(a.least, b.least) {
			fields = append(fields, "min_balance")
		}
		if !sameBound(a.most, b.most) {
			fields = append(fields, "max_balance")
		}
		if len(fields) > 0 {
			return "ACCOUNT_EXISTS_DIFFERENT " + strings.Join(fields, ",")
		}
		return "there: " + b.line()
	}
	if a.least != nil && a.least.Sign() > 0 || a.most != nil && a.most.Sign() < 0 {
		return "ACCOUNT_LIMIT_VIOLATED"
	}
	m.accounts[o.account] = a
	return "made: " + a.line()
}

func sameBound(a, b *big.Int) bool {
	return a == nil && b == nil || a != nil && b != nil && a.Cmp(b) == 0
}
