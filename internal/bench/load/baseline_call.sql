-- One transfer of the baseline: tenant, biz_no, from, to, amount in minor units.
select bench.transfer($1, $2, $3, $4, $5)
