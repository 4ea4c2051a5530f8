"""The report page and the paper's figures, from run folders alone."""

from kepsvgp.report.page import write_report as write_report
