"""Forecasters of one series, all with one interface, by well-kept libraries where there is one.

    series.py      the interface, gaps, errors of rolling forecasts
    simple.py      the last value, the mean of the last ones, the same time a season ago
    arima.py       ARIMA, orders by AIC (statsmodels)
    ets.py         exponential smoothing (statsmodels)
    prophet.py     Prophet
    kalman.py      local linear trend, by a Kalman filter (statsmodels)
    registry.py    all of them by name
    recurrent.py   sizes and training that recurrent networks share
    determinism.py one thread and a random state of its own for what is trained

statsmodels and Prophet are imported when a forecaster is made; Prophet comes with the extra `forecast`.
"""
